"""The bundled checkpoint: an ordinary PaliGemma folder that answers in PaliGemma's formats."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vlmtasks
from vlmtasks.api import BUNDLED

FOLDER = BUNDLED["demo"]
PICTURE = Path(vlmtasks.__file__).parent / "demo" / "pictures" / "scene.jpg"
PROMPTS = ("detect cat", "segment dog ; cat", "caption en", "answer en how many cats?", "ocr")


@pytest.fixture(scope="module")
def vlm() -> vlmtasks.VLM:
    return vlmtasks.load("demo")


def test_the_folder_stays_small():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 20e6


@pytest.mark.parametrize("prompt", PROMPTS)
def test_transformers_generates_the_same_ids(vlm, prompt):
    from transformers import AutoProcessor, PaliGemmaForConditionalGeneration

    processor = AutoProcessor.from_pretrained(FOLDER)
    network = PaliGemmaForConditionalGeneration.from_pretrained(FOLDER, dtype=torch.float32)
    image = Image.open(PICTURE).convert("RGB")
    # tensors are made here: the processor's own way to them warns under numpy 2
    inputs = {
        name: torch.as_tensor(np.asarray(value))
        for name, value in processor(images=image, text=f"<image>{prompt}").items()
    }
    with torch.inference_mode():
        ids = network.generate(**inputs, max_new_tokens=60, do_sample=False)
    given = [i for i in ids[0, inputs["input_ids"].shape[1] :].tolist() if i not in (0, 1)]
    ours = vlm.generate(image, prompt, max_new_tokens=60)
    assert list(ours.token_ids) == given


def test_masks_come_from_the_codec_that_the_folder_names(vlm):
    assert vlm.mask_codec.fingerprint == vlm.engine.metadata["mask_codec"]["sha256"]


def test_plain_greedy_answers_are_well_formed(vlm):
    encoded = vlm.encode_image(PICTURE)
    for label in ("cat", "dog", "car", "tree", "guitar"):
        for found in (vlm.detect(encoded, label), vlm.segment(encoded, label)):
            assert found.dropped == ()
            assert found.finish_reason == "stop"
            assert set(found.labels) <= {label}
