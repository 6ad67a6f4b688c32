"""The bundled checkpoint: an ordinary PaliGemma folder that answers in PaliGemma's formats."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vlmtasks
from vlmtasks.api import BUNDLED
from vlmtasks.boxes import box_iou

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


def test_plain_greedy_answers_are_well_formed_and_the_grammar_does_not_change_them(vlm):
    encoded = vlm.encode_image(PICTURE)
    for label in ("cat", "dog", "car", "tree", "guitar"):
        for verb in (vlm.detect, vlm.segment):
            found = verb(encoded, label, constrain=False)
            assert found.dropped == ()
            assert found.finish_reason == "stop"
            assert set(found.labels) <= {label}
            assert verb(encoded, label).text == found.text


def test_two_cats_and_a_dog_are_found_and_nothing_else(vlm):
    """Boxes read off the picture, which no training saw."""
    encoded = vlm.encode_image(PICTURE)
    found = vlm.segment(encoded, "cat ; dog")
    truth = np.array([[84, 256, 260, 440], [100, 24, 366, 224], [308, 360, 430, 458]], float)
    assert found.labels == ("cat", "cat", "dog")
    assert np.diag(box_iou(truth, found.boxes_xyxy)).min() > 0.7
    assert vlm.answer(encoded, "how many cats?") == "2"
    assert [len(vlm.detect(encoded, label)) for label in ("car", "tree", "guitar")] == [0, 0, 0]
