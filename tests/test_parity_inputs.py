"""What goes into the network against transformers: pixels of pictures, ids of prompts."""

import os
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="pip install 'vlmtasks[reference]' to compare with it")

import numpy as np
from PIL import Image
from tiny_checkpoints import tiny_tokenizer

from benchmarks import parity
from vlmtasks.engine.pixels import PixelConfig, to_pixels
from vlmtasks.engine.prompt_ids import prompt_ids
from vlmtasks.engine.tokenizer import Tokenizer

SEED = int(os.environ["VLMTASKS_PARITY_SEED"])


@pytest.mark.parametrize("side", [8, 56, 224])
def test_pixels_equal_transformers(side):
    assert parity.compare_pixels(parity.draw_pictures(SEED + side, 12), side) <= 1


@pytest.mark.parametrize("resample", list(Image.Resampling), ids=lambda f: f.name.lower())
def test_settings_of_the_file_equal_transformers(resample):
    settings = {
        "size": {"height": 30, "width": 30},
        "resample": int(resample),
        "rescale_factor": 1 / 200,
        "image_mean": [0.4, 0.5, 0.6],
        "image_std": [0.2, 0.3, 0.4],
    }
    pictures = parity.draw_pictures(SEED, 4)

    theirs = np.stack(parity.SiglipImageProcessorPil(**settings)(pictures)["pixel_values"])
    ours = to_pixels(pictures, PixelConfig.from_dict(settings, 30)).numpy()

    assert np.abs(ours - theirs).max() < 1e-4


@pytest.fixture(scope="module")
def real_tokenizer(shared_data: Path):
    return parity.paligemma_tokenizer(shared_data / "gemma-tokenizer" / "tokenizer.json")


@pytest.fixture(scope="module")
def processor(real_tokenizer):
    return parity.reference_processor(real_tokenizer, side=28, patch=14)


@pytest.fixture(scope="module")
def ours(real_tokenizer) -> Tokenizer:
    return Tokenizer(real_tokenizer)


def test_ids_of_the_added_tokens(ours):
    assert (ours.pad_id, ours.eos_id, ours.bos_id, ours.newline_id) == (0, 1, 2, 108)
    assert (ours.loc_start, ours.seg_start, ours.image_id, ours.size) == (
        256000,
        257024,
        257152,
        257153,
    )
    assert ours.encode("<loc0000><loc1023>", location_tokens=True) == [256000, 257023]


@pytest.mark.parametrize(
    ("language", "prompt"), parity.PROMPTS, ids=[f"{p[0]}-{p[1][:12]}" for p in parity.PROMPTS]
)
def test_prompt_ids_equal_transformers(processor, ours, language, prompt):
    theirs = list(processor(images=Image.new("RGB", (9, 5)), text=prompt)["input_ids"][0])

    mine = prompt_ids(ours, prompt, 4, 257152)

    assert mine == theirs
    assert mine[:5] == [257152] * 4 + [2]
    assert mine[-1] == 108
    assert ours.decode(mine) == prompt + "\n"


def test_prompts_are_in_ten_languages_and_more():
    assert len({language for language, _ in parity.PROMPTS}) >= 10


def test_caption_of_a_box_equals_transformers(processor, ours):
    prompt = "caption <loc0256><loc0128><loc0768><loc0512>"

    theirs = list(processor(images=Image.new("RGB", (9, 5)), text=prompt)["input_ids"][0])

    assert prompt_ids(ours, prompt, 4, 257152, location_tokens=True) == theirs


def test_several_pictures_equal_transformers(processor, ours):
    pictures = [[Image.new("RGB", (9, 5)), Image.new("RGB", (5, 9))]]

    theirs = list(processor(images=pictures, text=["caption en"])["input_ids"][0])

    assert prompt_ids(ours, "caption en", 8, 257152) == theirs


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("detect cat", [39208, 4401]),
        ("caption en", [21209, 659]),
        ("a cat", [235250, 4401]),
    ],
)
def test_published_ids(ours, text, ids):
    assert ours.encode(text) == ids


def test_small_vocabulary_equals_transformers():
    """The tokenizer of our tests goes the same way as the real one."""
    tokenizer = tiny_tokenizer()
    image_id = tokenizer.token_to_id("<image>")
    processor = parity.reference_processor(tokenizer, side=28, patch=14)
    prompt = "detect cat ; dog ; zebra 猫"

    theirs = list(processor(images=Image.new("RGB", (9, 5)), text=prompt)["input_ids"][0])

    assert prompt_ids(Tokenizer(tokenizer), prompt, 4, image_id) == theirs
