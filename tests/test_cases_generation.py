"""The reported problems of generation (G…)."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from scripted_network import script
from tiny_checkpoints import tiny_folder, tiny_picture

from vlmtasks.api import VLM
from vlmtasks.engine import Engine

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
