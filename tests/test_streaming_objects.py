"""Objects and words while the answer is being written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from stub_engine import StubEngine
from tiny_checkpoints import tiny_picture

from vlmtasks.api import VLM, load
from vlmtasks.errors import ImageError, InputError, MaskCodecError

CAT = "<loc0256><loc0128><loc0768><loc0512>"
DOG = "<loc0000><loc0000><loc0512><loc1023>"
CODES = "".join(f"<seg{code:03d}>" for code in range(16))
SIZE = (640, 480)


class FullCodec:
    fingerprint = "0" * 64

    def decode(self, codes: Any) -> np.ndarray:
        return np.ones((len(codes), 64, 64), np.float32)


def picture() -> Image.Image:
    return Image.new("RGB", SIZE, "red")


def stream(answer: str, labels: Any = ("cat", "dog"), **options: Any) -> tuple[Any, StubEngine]:
    engine = StubEngine(answer)
    return VLM(engine).stream_detect(picture(), labels, **options), engine


# --- when ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "seen"),
    [
        pytest.param(f"{CAT} cat ; {DOG} dog", f"{CAT} cat ;", id="separator"),
        pytest.param(f"{CAT} cat;{DOG} dog", f"{CAT} cat;", id="bare separator"),
        pytest.param(f"{CAT} cat{DOG} dog", f"{CAT} cat<loc0000>", id="next box"),
        pytest.param(f"so: {CAT} cat, {DOG} dog", f"so: {CAT} cat, <loc0000>", id="chatter"),
    ],
)
def test_object_comes_as_soon_as_its_record_is_complete(answer: str, seen: str) -> None:
    objects, engine = stream(answer, constrain=False)
    first = next(objects)
    assert first.box_xyxy == (80, 120, 320, 360)
    assert engine.streamed == len(engine.vocabulary.encode(seen))


def test_nothing_is_computed_behind_a_close() -> None:
    objects, engine = stream(f"{CAT} cat ; {DOG} dog")
    next(objects)
    objects.close()
    before = engine.streamed
    assert list(objects) == []
    assert engine.streamed == before


# --- what ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "labels"),
    [
        pytest.param("", "cat", id="nothing"),
        pytest.param(f"{CAT} cat", "cat", id="one"),
        pytest.param(f"{CAT} ; {DOG}", "cat", id="without names"),
        pytest.param(f"{CAT} cat ; {DOG} dog ; {CAT} dog", ["cat", "dog"], id="three"),
        pytest.param(f"{CAT} cat ; {CAT} cat ; {DOG} cat", "cat", id="repetition"),
        pytest.param(f"{CAT} cat ; <loc0001> dog ; {DOG} dog", ["cat", "dog"], id="malformed"),
        pytest.param(f"{CAT}{DOG} dog", ["cat", "dog"], id="eight bins"),
        pytest.param(f"{CAT} cat ; {DOG[:20]}", ["cat", "dog"], id="cut in a box"),
        pytest.param("no cat here; sorry", "cat", id="words"),
    ],
)
@pytest.mark.parametrize("constrain", [True, False], ids=["grammar", "free"])
def test_stream_gives_what_detect_gives(answer: str, labels: Any, constrain: bool) -> None:
    objects, engine = stream(answer, labels, constrain=constrain)
    streamed = list(objects)
    plain = VLM(engine).detect(picture(), labels, constrain=constrain)
    assert [(o.label, o.score, o.box_xyxy) for o in streamed] == [
        (o.label, o.score, o.box_xyxy) for o in plain
    ]
    assert objects.result.to_dict() == plain.to_dict()


def test_segments_come_with_masks() -> None:
    vlm = VLM(StubEngine(f"{CAT}{CODES} cat ; {DOG}{CODES} cat"), mask_codec=FullCodec())
    first, second = vlm.stream_segment(picture(), "cat")
    assert first.mask is not None and second.mask is not None
    assert (first.mask.sum(), second.mask.sum()) == (240 * 240, 639 * 240)


def test_classes_apart_are_asked_one_after_another() -> None:
    engine = StubEngine(lambda prompt, _: f"{CAT} {prompt.removeprefix('detect ')}")
    objects = VLM(engine).stream_detect(picture(), ["cat", "dog"], strategy="separate")
    assert next(objects).label == "cat"
    assert engine.prompts == [["detect cat"]]
    assert [thing.label for thing in objects] == ["dog"]
    assert objects.result.labels == ("cat", "dog")


def test_cut_answer_is_told() -> None:
    objects, _ = stream(f"{CAT} cat ; {DOG} dog", max_new_tokens=16, constrain=False)
    assert [thing.label for thing in objects] == ["cat"]
    assert objects.result.finish_reason == "length"
    assert [record.problem for record in objects.result.dropped] == ["truncated"]


def test_result_is_there_at_the_end_only() -> None:
    objects, _ = stream(f"{CAT} cat")
    with pytest.raises(InputError, match="the stream has not ended"):
        _ = objects.result
    list(objects)
    assert objects.result.labels == ("cat",)


def test_stream_on_a_network_is_the_same(tiny_checkpoint: Path, tiny_codec: Any) -> None:
    vlm = load(tiny_checkpoint, device="cpu", mask_codec=tiny_codec)
    for name in ("detect", "segment"):
        for options in ({}, {"boxes": "expected"}, {"stop_score": 0.0001, "max_objects": 3}):
            options = {"max_new_tokens": 90, "score": "product", **options}
            objects = getattr(vlm, f"stream_{name}")(tiny_picture(), ["cat", "dog"], **options)
            streamed = list(objects)
            plain = getattr(vlm, name)(tiny_picture(), ["cat", "dog"], **options)
            assert len(streamed) == len(plain)
            for one, other in zip(streamed, plain, strict=True):
                assert (one.label, one.box_xyxy) == (other.label, other.box_xyxy)
                assert one.score == pytest.approx(other.score, rel=1e-3)


# --- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tile": 100}, "tile cannot be used with a stream"),
        ({"nms": 0.5}, "nms cannot"),
        ({"num_beams": 2}, "num_beams cannot"),
        ({"on_error": "return"}, "on_error cannot"),
        ({"score": "size"}, "score is 'size'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_wrong_keyword_is_told_at_the_call(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        stream("", **options)


def test_bad_picture_is_told_at_the_call() -> None:
    with pytest.raises(ImageError):
        VLM(StubEngine()).stream_detect("gone.png", "cat")


def test_segment_without_codec_is_told_at_the_call() -> None:
    with pytest.raises(MaskCodecError):
        VLM(StubEngine()).stream_segment(picture(), "cat")


# --- captions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "pieces"),
    [
        pytest.param("a cat", ["a", " c", "a", "t"], id="words"),
        pytest.param(" \na  b \n", ["a", "  b"], id="blanks at the ends"),
        pytest.param("", [], id="nothing"),
        pytest.param("  ", [], id="blanks only"),
    ],
)
def test_caption_comes_in_pieces(answer: str, pieces: list[str]) -> None:
    engine = StubEngine(answer)
    assert list(VLM(engine).stream_caption(picture(), "de")) == pieces
    assert "".join(pieces) == VLM(engine).caption(picture(), "de")
    assert engine.prompts[0] == ["caption de"]


def test_caption_of_a_network_is_the_same(tiny_checkpoint: Path) -> None:
    vlm = load(tiny_checkpoint, device="cpu")
    options: dict[str, Any] = {"max_new_tokens": 12, "temperature": 1.0, "seed": 4}
    pieces = list(vlm.stream_caption(tiny_picture(), **options))
    assert "".join(pieces) == vlm.caption(tiny_picture(), **options)
