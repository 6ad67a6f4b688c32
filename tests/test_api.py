"""The verbs: prompts, pictures, lists, batches, errors, the default model."""

import io
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from stub_engine import StubCodec, StubEncoded, StubEngine

import vlmtasks
from vlmtasks import api
from vlmtasks.api import VLM, LazyVLM
from vlmtasks.errors import (
    CheckpointError,
    ImageError,
    InputError,
    MaskCodecError,
    MissingImageError,
)

CAT = "<loc0256><loc0128><loc0768><loc0512> cat"
MASKED_CAT = "<loc0256><loc0128><loc0768><loc0512>" + "<seg005>" * 16 + " cat"
SIZE = (640, 480)


def picture(colour: str = "red", size: tuple[int, int] = SIZE) -> Image.Image:
    return Image.new("RGB", size, colour)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Seven pictures whose width tells their place: 10, 11, 12 …"""
    paths = [str(tmp_path / f"{place}.png") for place in range(7)]
    for place, path in enumerate(paths):
        picture(size=(10 + place, 8)).save(path)
    return paths


# --- what each verb asks, and what it gives ------------------------------------------------------

VERBS = [
    pytest.param("caption", (), "caption en", id="caption"),
    pytest.param("caption", ("de", "describe"), "describe de", id="caption-style"),
    pytest.param("answer", ("how many?",), "answer en how many?", id="answer"),
    pytest.param("answer", ("combien ?", "fr"), "answer fr combien ?", id="answer-lang"),
    pytest.param("question", ("two",), "question en two", id="question"),
    pytest.param("ocr", (), "ocr", id="ocr"),
    pytest.param("detect", ("cat",), "detect cat", id="detect"),
    pytest.param("detect", ("cat ; dog",), "detect cat ; dog", id="detect-joined"),
    pytest.param("detect", (["cat", "dog"],), "detect cat ; dog", id="detect-list"),
    pytest.param("segment", ("cat",), "segment cat", id="segment"),
    pytest.param(
        "caption_box",
        ((80, 120, 320, 360),),
        "caption <loc0256><loc0128><loc0768><loc0512>",
        id="caption_box",
    ),
    pytest.param("generate", ("<image>tell me\n",), "tell me", id="generate"),
]


@pytest.mark.parametrize(("verb", "arguments", "prompt"), VERBS)
def test_verb_asks_in_the_words_of_the_model(
    verb: str, arguments: tuple[Any, ...], prompt: str
) -> None:
    engine = StubEngine()
    getattr(VLM(engine, mask_codec=StubCodec()), verb)(picture(), *arguments)
    assert engine.prompts == [[prompt]]


@pytest.mark.parametrize("verb", ["caption", "ocr"])
def test_text_verbs_give_stripped_text(verb: str) -> None:
    assert getattr(VLM(StubEngine(" a cat\n")), verb)(picture()) == "a cat"


def test_detect_gives_boxes_in_pixels_with_scores() -> None:
    found = VLM(StubEngine(CAT)).detect(picture(), "cat")
    assert found.boxes_xyxy.tolist() == [[80, 120, 320, 360]]
    assert found.labels == ("cat",)
    assert found.scores == pytest.approx([np.exp(-0.5)])
    assert (found.masks, found.image_size, found.finish_reason) == (None, SIZE, "stop")


def test_segment_gives_masks_in_their_boxes() -> None:
    found = VLM(StubEngine(MASKED_CAT), mask_codec=StubCodec()).segment(picture(), "cat")
    assert found.masks is not None
    rows, columns = np.nonzero(found.masks[0])
    assert (columns.min(), rows.min(), columns.max(), rows.max()) == (80, 120, 319, 359)


def test_labels_may_be_an_iterator() -> None:
    engine = StubEngine(CAT)
    both = VLM(engine).detect([picture(), picture()], iter(["cat", "dog"]))
    assert engine.prompts == [["detect cat ; dog"] * 2]
    assert [found.labels for found in both] == [("cat",), ("cat",)]


def test_box_scale_of_the_checkpoint_is_used_in_both_directions() -> None:
    engine = StubEngine(CAT, metadata={"box_scale": 1023})
    vlm = VLM(engine)
    found = vlm.detect(picture(size=(1023, 1023)), "cat")
    assert found.boxes_xyxy.tolist() == [[128, 256, 512, 768]]
    vlm.caption_box(picture(size=(1023, 1023)), (128, 256, 512, 768))
    assert engine.prompts[-1] == ["caption <loc0256><loc0128><loc0768><loc0512>"]


def test_generate_tells_why_it_ended() -> None:
    vlm = VLM(StubEngine("abcd"))
    whole = vlm.generate(picture(), "x", max_new_tokens=5)
    cut = vlm.generate(picture(), "x", max_new_tokens=3)
    assert (whole.text, whole.finish_reason) == ("abcd", "stop")
    assert (cut.text, cut.finish_reason) == ("abc", "length")


def test_location_tokens_are_read_in_box_captions_only() -> None:
    engine = StubEngine()
    vlm = VLM(engine)
    vlm.caption_box(picture(), (0, 0, 9, 9))
    vlm.generate(picture(), "caption <loc0001><loc0001><loc0002><loc0002>")
    told = [keywords.get("location_tokens") for keywords in engine.keywords]
    assert told == [True, None]


# --- pictures ------------------------------------------------------------------------------------


def _png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def _file(tmp_path: Path) -> Path:
    path = tmp_path / "red.png"
    picture().save(path)
    return path


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda folder: _file(folder), id="Path"),
        pytest.param(lambda folder: str(_file(folder)), id="str"),
        pytest.param(lambda folder: _png(picture()), id="bytes"),
        pytest.param(lambda folder: picture(), id="PIL"),
        pytest.param(lambda folder: np.asarray(picture()), id="numpy"),
        pytest.param(lambda folder: StubEncoded(SIZE, (255, 0, 0)), id="encoded"),
    ],
)
def test_every_kind_of_picture_gives_the_same(make: Any, tmp_path: Path) -> None:
    engine = StubEngine(lambda prompt, image: f"{image.image_size} {image.colour}")
    assert VLM(engine).caption(make(tmp_path)) == "(640, 480) (255, 0, 0)"


def test_encoded_picture_passes_through_the_vision_tower_once() -> None:
    engine = StubEngine(CAT)
    vlm = VLM(engine)
    encoded = vlm.encode_image(picture())
    vlm.detect(encoded, "cat")
    vlm.caption([encoded, picture("blue", (5, 5)), encoded])
    assert engine.encoded == [[SIZE], [(5, 5)]]


def test_encode_image_of_a_list_is_batched(files: list[str]) -> None:
    engine = StubEngine()
    encoded = VLM(engine).encode_image(files, batch_size=4)
    assert [each.image_size[0] for each in encoded] == [10, 11, 12, 13, 14, 15, 16]
    assert [len(batch) for batch in engine.encoded] == [4, 3]


# --- lists ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [list, tuple])
def test_list_gives_list_in_order_and_batches(kind: type, files: list[str]) -> None:
    engine = StubEngine(lambda prompt, image: str(image.image_size[0]))
    captions = VLM(engine).caption(kind(files), batch_size=3)
    assert captions == ["10", "11", "12", "13", "14", "15", "16"]
    assert [len(batch) for batch in engine.prompts] == [3, 3, 1]


def test_list_of_one_gives_list_of_one() -> None:
    assert VLM(StubEngine("a")).caption([picture()]) == ["a"]


@pytest.mark.parametrize(("verb", "arguments", "prompt"), VERBS)
def test_empty_list_gives_empty_list_without_the_model(
    verb: str, arguments: tuple[Any, ...], prompt: str
) -> None:
    assert getattr(_unloadable(), verb)([], *arguments) == []


def test_one_question_for_all_or_one_for_each() -> None:
    engine = StubEngine()
    vlm = VLM(engine)
    vlm.answer([picture(), picture()], "who?")
    vlm.answer([picture(), picture()], ["who?", "where?"])
    assert engine.prompts == [["answer en who?"] * 2, ["answer en who?", "answer en where?"]]


def test_one_box_for_all_or_one_for_each() -> None:
    engine = StubEngine()
    vlm = VLM(engine)
    vlm.caption_box([picture(), picture(size=(320, 240))], (0, 0, 320, 240))
    vlm.caption_box([picture(), picture()], [(0, 0, 320, 240), (320, 240, 640, 480)])
    half, whole = "<loc0000><loc0000><loc0512><loc0512>", "<loc0000><loc0000><loc1023><loc1023>"
    assert engine.prompts[0] == [f"caption {half}", f"caption {whole}"]
    assert engine.prompts[1] == [f"caption {half}", "caption <loc0512><loc0512><loc1023><loc1023>"]


@pytest.mark.parametrize(
    ("pictures", "question"),
    [
        pytest.param(2, ["who?"], id="too few"),
        pytest.param(1, ["who?", "where?"], id="too many"),
        pytest.param(0, ["who?"], id="none asked about"),
    ],
)
def test_wrong_number_of_questions_is_told(pictures: int, question: list[str]) -> None:
    with pytest.raises(InputError, match=rf"question is a list of \d for {pictures} pictures"):
        _unloadable().answer([picture()] * pictures, question)


# --- keywords ------------------------------------------------------------------------------------


def test_task_limit_gives_way_to_the_context_but_the_users_does_not() -> None:
    engine = StubEngine(context=100)
    vlm = VLM(engine)
    vlm.detect(picture(), "cat")
    vlm.detect(picture(), "cat", max_new_tokens=300)
    limits = [keywords["max_new_tokens"] for keywords in engine.keywords]
    assert limits == [100 - len("detect cat"), 300]


def test_sampling_keywords_reach_the_engine_with_a_seed_for_each_batch() -> None:
    engine = StubEngine()
    VLM(engine).caption([picture()] * 3, batch_size=2, temperature=0.5, seed=7)
    assert [(k["temperature"], k["seed"]) for k in engine.keywords] == [(0.5, 7), (0.5, 9)]


def test_unknown_keyword_is_a_type_error_before_loading() -> None:
    with pytest.raises(TypeError, match="unexpected keyword 'temprature'; known are max_new_tok"):
        _unloadable().caption(picture(), temprature=1.0)  # type: ignore[call-arg]


# --- errors --------------------------------------------------------------------------------------


def _unloadable() -> LazyVLM:
    """A model that cannot be loaded, to show that nothing loads it."""
    return LazyVLM("/nowhere/at all")


@pytest.mark.parametrize(
    ("verb", "arguments", "options", "message"),
    [
        pytest.param("detect", ("",), {}, "names nothing", id="no class"),
        pytest.param("detect", ([],), {}, "names nothing", id="no classes"),
        pytest.param("detect", (None,), {}, "classes are None", id="classes None"),
        pytest.param("segment", ([""],), {}, "is empty", id="empty class"),
        pytest.param("answer", (" ",), {}, "question is ' '", id="empty question"),
        pytest.param("answer", (None,), {}, "question is None", id="question None"),
        pytest.param("caption", ("english",), {}, "lang is 'english'", id="language"),
        pytest.param("caption", ("en", "long"), {}, "style is 'long'", id="style"),
        pytest.param("generate", (7,), {}, "prompt is 7", id="prompt"),
        pytest.param("caption_box", ((1, 2, 3),), {}, "box_xyxy has the shape", id="box of three"),
        pytest.param("caption_box", ([[1, 2], [3]],), {}, "must be numbers of", id="box of rows"),
        pytest.param("caption_box", ((0, 0, 10**400, 1),), {}, "must be numbers", id="huge box"),
        pytest.param("caption_box", ("0 0 1 1",), {}, "must be numbers", id="box in words"),
        pytest.param("caption", (), {"max_new_tokens": 0}, "max_new_tokens is 0", id="no tokens"),
        pytest.param("caption", (), {"max_new_tokens": 2.5}, "tokens is 2.5", id="half tokens"),
        pytest.param("caption", (), {"batch_size": 0}, "batch_size is 0", id="batch size"),
        pytest.param("caption", (), {"on_error": "skip"}, "on_error is 'skip'", id="on_error"),
    ],
)
def test_wrong_arguments_are_told_before_picture_and_model(
    verb: str, arguments: Any, options: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        getattr(_unloadable(), verb)("no such picture.png", *arguments, **options)


@pytest.mark.parametrize(
    "box",
    [
        pytest.param((700, 10, 800, 20), id="outside"),
        pytest.param((10, 10, 10, 20), id="no area"),
        pytest.param((30, 10, 20, 20), id="reversed"),
    ],
)
def test_box_that_covers_nothing_is_told(box: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="box_xyxy is"):
        VLM(StubEngine()).caption_box(picture(), box)


def test_bad_picture_is_told_with_its_place_and_name(files: list[str]) -> None:
    files[2] += ".gone"
    with pytest.raises(MissingImageError, match=r"picture 2 \(from 0\) of 7: .*2\.png\.gone"):
        VLM(StubEngine()).caption(files)


def test_bad_single_picture_is_told_without_a_place() -> None:
    with pytest.raises(MissingImageError, match=r"^there is no picture 'gone\.png'"):
        _unloadable().caption("gone.png")


def test_bad_picture_can_be_returned_and_the_others_are_asked(files: list[str]) -> None:
    Path(files[1]).write_bytes(b"no picture")
    engine = StubEngine(lambda prompt, image: str(image.image_size[0]))
    answers = VLM(engine).caption(files[:4], on_error="return", batch_size=2)
    assert [answers[0], *answers[2:]] == ["10", "12", "13"]
    assert isinstance(answers[1], ImageError)


def test_only_bad_pictures_load_nothing() -> None:
    (error,) = _unloadable().detect(["gone.png"], "cat", on_error="return")
    assert isinstance(error, MissingImageError)


def test_pictures_are_not_changed() -> None:
    grey = Image.new("LA", (4, 4), (9, 0))
    before = grey.tobytes()
    VLM(StubEngine()).caption(grey)
    assert (grey.mode, grey.tobytes()) == ("LA", before)


# --- mask codecs ---------------------------------------------------------------------------------


def _named(sha256: Any, file: Any = "bundled") -> dict[str, Any]:
    return {"mask_codec": {"file": file, "sha256": sha256}}


def test_segment_without_known_codec_is_refused_before_the_model_runs() -> None:
    engine = StubEngine(MASKED_CAT)
    with pytest.raises(MaskCodecError, match=r"pass mask_codec=.*vae-oid\.npz"):
        VLM(engine).segment(picture(), "cat")
    assert engine.prompts == []


def test_detect_needs_no_codec() -> None:
    assert len(VLM(StubEngine(MASKED_CAT)).detect(picture(), "cat")) == 1


def test_codec_with_the_named_fingerprint_is_taken() -> None:
    engine = StubEngine(MASKED_CAT, metadata=_named("0" * 64))
    assert len(VLM(engine, mask_codec=StubCodec()).segment(picture(), "cat")) == 1


def test_codec_with_another_fingerprint_is_refused_at_once() -> None:
    engine = StubEngine(metadata=_named("1" * 64))
    with pytest.raises(MaskCodecError, match=r"0000, vlmtasks\.json names 1111"):
        VLM(engine, mask_codec=StubCodec())


@pytest.mark.parametrize("name", ["gone.npz", "x" * 300 + ".npz"], ids=["gone", "too long"])
def test_missing_codec_file_is_told_at_once(tmp_path: Path, name: str) -> None:
    with pytest.raises(MaskCodecError, match="no codec weights at"):
        VLM(StubEngine(), mask_codec=tmp_path / name)


def test_codec_of_another_kind_is_told_at_once() -> None:
    with pytest.raises(MaskCodecError, match=r"b'x'; it must be a file or a vqvae\.MaskCodec"):
        VLM(StubEngine(), mask_codec=b"x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        pytest.param({"mask_codec": "vae.npz"}, "mask_codec is 'vae.npz'", id="no object"),
        pytest.param(_named(None), "sha256 of mask_codec is None", id="no fingerprint"),
        pytest.param(_named("12"), "sha256 of mask_codec is '12'", id="short fingerprint"),
        pytest.param(_named("0" * 64, "../vae.npz"), "leads out", id="parent folder"),
        pytest.param(_named("0" * 64, "/etc/passwd"), "leads out", id="absolute path"),
        pytest.param(_named("0" * 64, r"..\vae.npz"), "leads out", id="windows parent"),
        pytest.param(_named("0" * 64, 7), "7 is no file name", id="number"),
        pytest.param({"box_scale": 1000}, "box_scale is 1000", id="box scale"),
        pytest.param({"box_scale": "1024"}, "box_scale is '1024'", id="box scale as text"),
    ],
)
def test_wrong_sidecar_is_told_at_loading(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        VLM(StubEngine(metadata=metadata))


# --- the default model ---------------------------------------------------------------------------


@pytest.fixture
def default(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Sources that the default model was loaded from; it says where it is from."""
    loaded: list[Any] = []

    def load(source: Any, **options: Any) -> VLM:
        loaded.append(source)
        return VLM(StubEngine(f"from {source}"))

    monkeypatch.setattr(api, "_load", load)
    monkeypatch.setattr(api._default, "_loaded", None)
    monkeypatch.delenv("VLMTASKS_MODEL", raising=False)
    return loaded


def test_functions_ask_the_bundled_model_by_default(default: list[Any]) -> None:
    assert vlmtasks.caption(picture()) == "from demo"
    assert vlmtasks.answer([picture()], "who?") == ["from demo"]
    assert default == ["demo"]


def test_functions_ask_the_model_of_the_environment(
    default: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLMTASKS_MODEL", "some/folder")
    assert vlmtasks.caption(picture()) == "from some/folder"


def test_default_model_is_loaded_once_by_many_threads(
    default: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(8)
    captions: list[str] = []

    def ask() -> None:
        together.wait()
        captions.append(vlmtasks.caption(picture()))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert captions == ["from demo"] * 8
    assert default == ["demo"]


def test_failed_load_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = _unloadable()
    for _ in range(2):
        with pytest.raises(CheckpointError):
            vlm.caption(picture())
    monkeypatch.setattr(api, "_load", lambda source, **options: VLM(StubEngine("now")))
    assert vlm.caption(picture()) == "now"


# --- with a network ------------------------------------------------------------------------------


def test_every_verb_runs_on_a_real_checkpoint(tiny_checkpoint: Path, tiny_codec: Any) -> None:
    vlm = vlmtasks.load(tiny_checkpoint, device="cpu", dtype="float32", mask_codec=tiny_codec)
    small = np.arange(48 * 32 * 3, dtype=np.uint8).reshape(32, 48, 3)
    short = {"max_new_tokens": 4}
    for text in (
        vlm.caption(small, **short),
        vlm.answer(small, "how many?", **short),
        vlm.question(small, "two", **short),
        vlm.ocr(small, **short),
        vlm.caption_box(small, (3, 3, 40, 30), **short),
    ):
        assert isinstance(text, str)
    assert vlm.detect(small, "cat", **short).finish_reason == "length"
    assert vlm.segment(small, "cat", **short).image_size == (48, 32)
    encoded = vlm.encode_image(small)
    once = vlm.generate(encoded, "detect cat", **short)
    assert len(once.token_ids) == len(once.logprobs) == 4
    both = vlm.generate([small, encoded], "detect cat", **short)
    assert [each.token_ids for each in both] == [once.token_ids] * 2


def test_default_length_fits_a_short_context(tiny_checkpoint: Path) -> None:
    vlm = vlmtasks.load(tiny_checkpoint)
    assert vlm.detect(picture(), "cat").image_size == SIZE


def test_picture_encoded_by_another_model_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    from tiny_checkpoints import tiny_folder

    encoded = vlmtasks.load(tiny_folder(tmp_path / "other", seed=5)).encode_image(picture())
    with pytest.raises(InputError, match="another checkpoint"):
        vlmtasks.load(tiny_checkpoint).caption(encoded)


def test_load_tells_what_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        vlmtasks.load(tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        vlmtasks.load(tmp_path)


def test_load_tells_an_unknown_codec_file(tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "codec.npz").write_bytes(b"no codec")
    with pytest.raises(MaskCodecError, match="no npz file"):
        vlmtasks.load(tiny_checkpoint, mask_codec=os.fspath(tmp_path / "codec.npz"))
