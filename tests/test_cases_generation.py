"""The reported problems of generation (G…)."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from scripted_network import script
from tiny_checkpoints import tiny_folder, tiny_picture

import vlmtasks
from vlmtasks.api import VLM, LazyVLM
from vlmtasks.engine import Engine
from vlmtasks.errors import InputError

EOS = 1


@pytest.fixture
def engine(tmp_path) -> Engine:
    return Engine.load(tiny_folder(tmp_path), device="cpu")


def saying(engine: Engine, *answers: str, end: bool = True) -> Engine:
    """The engine with a network that says answers[row], then <eos> (or its last token for ever)."""
    ids = [engine.tokenizer.encode(a, location_tokens=True) + [EOS] * end for a in answers]
    engine.network = script(engine.config.text_config.vocab_size, *ids)  # type: ignore[assignment]
    return engine


def ask(engine, images, *prompts, **options):
    images = [images[0]] * len(prompts)
    return engine.generate(images, prompts, **{"max_new_tokens": 8, **options})


def test_g01_only_new_tokens(engine):
    images = engine.encode_image([tiny_picture()])
    (answer,) = ask(saying(engine, "two"), images, "answer en how many? two")
    assert answer.text == "two"
    assert list(answer.token_ids) == engine.tokenizer.encode("two")


def test_g03_each_row_stops_for_itself(engine):
    images = engine.encode_image([tiny_picture()])
    network = saying(engine, "a", "bef").network

    first, second = ask(engine, images, "x", "y z")

    assert (first.text, second.text) == ("a", "bef")
    assert (first.finish_reason, second.finish_reason) == ("stop", "stop")
    assert network.steps == 4
    assert EOS not in first.token_ids + second.token_ids


def test_g05_same_input_same_output(engine):
    images = engine.encode_image([tiny_picture()])
    state = torch.get_rng_state()

    first = ask(engine, images, "detect cat")
    second = ask(engine, images, "detect cat")

    assert first == second
    assert torch.equal(state, torch.get_rng_state())
    assert not engine.network.training


def test_g05_same_seed_same_output(engine):
    images = engine.encode_image([tiny_picture()])
    options = {"temperature": 1.0, "top_p": 0.95, "max_new_tokens": 20}

    first = ask(engine, images, "detect cat", seed=7, **options)

    assert first == ask(engine, images, "detect cat", seed=7, **options)
    assert first != ask(engine, images, "detect cat", seed=8, **options)


def test_g05_sampling_in_generation_config_is_not_taken_over(tmp_path, engine):
    images = engine.encode_image([tiny_picture()])
    (tmp_path / "generation_config.json").write_text(
        '{"do_sample": true, "temperature": 5.0, "top_k": 50, "num_beams": 4, "max_length": 3}'
    )
    other = Engine.load(tmp_path, device="cpu")
    assert ask(other, images, "detect cat") == ask(engine, images, "detect cat")


def test_g07_one_bos_on_every_way_in(engine):
    seen = []
    prefill = engine.network.prefill

    def spy(ids, valid, image_tokens, slots):
        seen.extend(row[mask].tolist() for row, mask in zip(ids, valid, strict=True))
        return prefill(ids, valid, image_tokens, slots)

    engine.network.prefill = spy
    images = engine.encode_image([tiny_picture()])
    ask(engine, images, "x", "<bos>x")
    ask(engine, images, "x", num_beams=2)
    list(engine.stream(images[0], "x", max_new_tokens=1))

    assert len(seen) == 4
    for ids in seen:
        assert ids.count(engine.tokenizer.bos_id) == 1
        assert ids[16] == engine.tokenizer.bos_id


@pytest.mark.parametrize("stream", [False, True])
def test_g07_repeating_record_stops(engine, stream):
    images = engine.encode_image([tiny_picture()])
    text_config = replace(engine.config.text_config, max_position_embeddings=1024)
    engine.config = replace(engine.config, text_config=text_config)
    record = "<loc0001><loc0002><loc0003><loc0004> cat ; "
    period = len(engine.tokenizer.encode(record, location_tokens=True))
    saying(engine, record * 80)

    if stream:
        steps = list(engine.stream(images[0], "detect cat", max_new_tokens=512))
        text, reason = "".join(step.text for step in steps), steps[-1].finish_reason
    else:
        (answer,) = ask(engine, images, "detect cat", max_new_tokens=512)
        assert len(answer.token_ids) == 21 * period
        text, reason = answer.text, answer.finish_reason

    assert (text, reason) == (record * 21, "length")


@pytest.mark.parametrize(
    ("end", "reason", "text"), [(True, "stop", "abe"), (False, "length", "abee")]
)
def test_g10_finish_reason(engine, end, reason, text):
    images = engine.encode_image([tiny_picture()])
    (answer,) = ask(saying(engine, "abe", end=end), images, "x", max_new_tokens=4)
    assert (answer.finish_reason, answer.text) == (reason, text)


# --- invented later ------------------------------------------------------------------------------


@pytest.fixture
def vlm(engine) -> VLM:
    return VLM(engine)


def test_a_picture_says_the_same_alone_and_in_a_batch(vlm):
    pictures = [tiny_picture(seed) for seed in range(5)]
    alone = [vlm.caption(picture, max_new_tokens=6) for picture in pictures]
    assert vlm.caption(pictures, batch_size=2, max_new_tokens=6) == alone
    assert vlm.caption(vlm.encode_image(pictures), max_new_tokens=6) == alone


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"seed": 4}, id="seed-without-sampling"),
        pytest.param({"num_beams": 1}, id="one-beam"),
        pytest.param({"temperature": 1e-6, "seed": 1}, id="hardly-any-temperature"),
        pytest.param({"temperature": 1.0, "top_p": 1e-9, "seed": 1}, id="hardly-any-top-p"),
        pytest.param({"max_new_tokens": np.int64(6)}, id="integer-of-numpy"),
    ],
)
def test_options_that_are_greedy(vlm, options):
    expected = vlm.caption(tiny_picture(), max_new_tokens=6)
    assert vlm.caption(tiny_picture(), **{"max_new_tokens": 6, **options}) == expected


def test_threads_do_not_disturb_each_other(vlm):
    expected = vlm.caption(tiny_picture(), max_new_tokens=6)
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(vlm.caption, tiny_picture(), max_new_tokens=6) for _ in range(8)]
    assert [job.result() for job in jobs] == [expected] * 8


def test_rows_of_a_batch_are_drawn_apart(vlm):
    said = vlm.caption([tiny_picture()] * 6, temperature=3.0, seed=4, max_new_tokens=8)
    assert len(set(said)) == 6


def test_sampling_leaves_the_random_numbers_of_torch_alone(vlm):
    state = torch.get_rng_state()
    vlm.caption(tiny_picture(), temperature=1.0, max_new_tokens=4)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        pytest.param(
            lambda vlm: vlm.generate(tiny_picture(), ["a", "b"]), "encode it once", id="two-prompts"
        ),
        pytest.param(
            lambda vlm: vlm.detect(tiny_picture(size_wh=(2000, 1500)), "cat", tile=4),
            "2000 at most",
            id="a-million-tiles",
        ),
        pytest.param(
            lambda vlm: vlm.caption(tiny_picture(), max_new_tokens=10**30),
            "positions",
            id="endless",
        ),
        pytest.param(
            lambda vlm: vlm.answer(tiny_picture(), "x y " * 50_000), "positions", id="long-question"
        ),
    ],
)
def test_calls_that_cannot_be_answered(vlm, call, words):
    with pytest.raises(ValueError, match=words):
        call(vlm)


# --- one item of a batch must not cost the others anything ---------------------------------------


def test_a_long_question_does_not_cut_the_answers_beside_it(vlm):
    """The context leaves 3 tokens behind the long question, and dozens behind the short one."""
    room = vlm.engine.room(*vlm.encode_image([tiny_picture()]), "answer en ")
    asked = ["e?", "e" * (room - 3)]
    alone = [vlm.answer(tiny_picture(), words) for words in asked]
    assert vlm.answer([tiny_picture()] * 2, asked) == alone
    options = {"temperature": 2.0, "seed": 1}
    asked = ["e", "answer en " + asked[1]]
    first, second = vlm.generate([tiny_picture()] * 2, asked, **options)
    assert len(first.token_ids) > 3 >= len(second.token_ids)
    assert first.token_ids[:3] != second.token_ids  # drawn apart, though asked apart


def far_box(vlm, **options):
    boxes = [(0, 0, 5, 5), (100, 100, 200, 200), (5, 5, 9, 9)]
    return vlm.caption_box([tiny_picture()] * 3, boxes, max_new_tokens=3, **options)


def long_question(vlm, **options):
    asked = ["e?", "e" * 600, "c?"]
    return vlm.answer([tiny_picture()] * 3, asked, max_new_tokens=3, **options)


def long_question_without_limit(vlm, **options):
    return vlm.answer([tiny_picture()] * 3, ["e?", "e" * 600, "c?"], **options)


def foreign_encoding(vlm, **options):
    foreign = replace(vlm.encode_image(tiny_picture()), fingerprint="of another checkpoint")
    pictures = [tiny_picture(), foreign, tiny_picture()]
    return vlm.detect(pictures, "cat", max_new_tokens=3, **options)


def encoded_for_tiles(vlm, **options):
    pictures = [tiny_picture(), vlm.encode_image(tiny_picture()), tiny_picture()]
    return vlm.detect(pictures, "cat", tile=32, max_new_tokens=3, **options)


def too_many_tiles(vlm, **options):
    pictures = [tiny_picture(), tiny_picture(size_wh=(2000, 1500)), tiny_picture()]
    return vlm.detect(pictures, "cat", tile=20, max_new_tokens=3, **options)


@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize(
    ("call", "words"),
    [
        pytest.param(far_box, "covers nothing", id="box-outside-of-its-picture"),
        pytest.param(long_question, "positions", id="question-too-long"),
        pytest.param(long_question_without_limit, "positions", id="no-room-for-one-token"),
        pytest.param(foreign_encoding, "another checkpoint", id="encoded-elsewhere"),
        pytest.param(encoded_for_tiles, "tile= cuts", id="encoded-but-to-be-cut"),
        pytest.param(too_many_tiles, "2000 at most", id="too-many-tiles"),
    ],
)
def test_what_is_wrong_with_one_picture_is_returned_in_its_place(vlm, call, words, batch_size):
    first, error, third = call(vlm, on_error="return", batch_size=batch_size)
    assert isinstance(error, InputError)
    assert words in str(error)
    assert not isinstance(first, Exception)
    assert not isinstance(third, Exception)
    with pytest.raises(InputError, match=rf"picture 1 \(from 0\) of 3: .*{words}"):
        call(vlm, batch_size=batch_size)


# --- what is wrong with an option is told before anything is opened or loaded --------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param({"temperature": -1}, "temperature", id="temperature"),
        pytest.param({"temperature": "hot"}, "temperature", id="temperature-in-words"),
        pytest.param({"top_p": 0}, "top_p", id="top-p"),
        pytest.param({"top_p": 0.5}, "top_p", id="top-p-without-temperature"),
        pytest.param({"num_beams": 0}, "num_beams", id="no-beams"),
        pytest.param({"best_of": 2}, "best_of", id="best-of-greedy"),
        pytest.param({"seed": "today"}, "seed", id="seed"),
        pytest.param({"location_tokens": "yes"}, "location_tokens", id="flag-in-words"),
    ],
)
def test_options_are_checked_first(options, words):
    vlm = LazyVLM("a model that would be an error of its own")
    for on_error in ("raise", "return"):
        with pytest.raises(InputError, match=words):
            vlm.caption("no such picture", on_error=on_error, **options)
        with pytest.raises(InputError, match=words):
            vlm.detect([], "cat", on_error=on_error, **options)


NUMPY = {
    "temperature": np.float32(0.5),
    "top_p": np.float16(0.5),
    "seed": np.int64(3),
    "best_of": np.uint8(2),
}


def test_numbers_of_numpy(vlm):
    plain = {name: value.item() for name, value in NUMPY.items()}
    pictures = [tiny_picture()] * 2
    said = vlm.caption(pictures, batch_size=1, max_new_tokens=6, **NUMPY)
    assert said == vlm.caption(pictures, batch_size=1, max_new_tokens=6, **plain)
    assert said[0] != said[1]
    beams = vlm.caption(tiny_picture(), num_beams=np.int64(2), max_new_tokens=4)
    assert beams == vlm.caption(tiny_picture(), num_beams=2, max_new_tokens=4)
    options = {"tile": 32, "max_objects": 3, "nms": 0.5, "stop_score": 0.25}
    few = {"max_objects": np.int32(3), "stop_score": np.float32(0.25)}
    found = vlm.detect(
        tiny_picture(), "cat", tile=np.int64(32), nms=np.float32(0.5), max_new_tokens=20, **few
    )
    assert found.text == vlm.detect(tiny_picture(), "cat", max_new_tokens=20, **options).text


@pytest.mark.parametrize(
    "pictures",
    [
        pytest.param((name for name in ["a.png"]), id="generator"),
        pytest.param({"a.png", "b.png"}, id="set"),
        pytest.param({"a": "a.png"}.values(), id="values-of-a-dict"),
    ],
)
def test_several_pictures_come_in_a_list(pictures):
    with pytest.raises(InputError, match="several pictures come in a list"):
        LazyVLM("none").caption(pictures)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(np.array(["a", "b"]), id="array"),
        pytest.param({"a": 1, "b": 2}, id="dict"),
        pytest.param({"a", "b"}, id="set"),
        pytest.param((word for word in "ab"), id="generator"),
    ],
)
def test_several_questions_come_in_a_list(words):
    with pytest.raises(InputError, match=r"question is .* or a list with one str for each picture"):
        LazyVLM("none").answer(["a.png", "b.png"], words)


def test_no_name_is_no_model():
    """As of an environment variable that is not set; the bundled one would be a guess."""
    with pytest.raises(InputError, match="a checkpoint is a path or a name on the hub, not ''"):
        vlmtasks.load("")


@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_question_for_all_that_is_too_long_is_no_fault_of_a_picture(vlm, batch_size):
    options = {"on_error": "return", "batch_size": batch_size}
    with pytest.raises(InputError, match="positions"):
        vlm.answer([tiny_picture()] * 3, "e" * 600, **options)
    (error,) = vlm.answer([tiny_picture()], ["e" * 600], **options)  # its own question
    assert "positions" in str(error)
