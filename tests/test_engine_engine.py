from dataclasses import replace

import pytest
import torch
from scripted_network import script
from tiny_checkpoints import save_folder, tiny_folder, tiny_network, tiny_picture

from vlmtasks.engine import EncodedImage, Engine
from vlmtasks.errors import InputError, NumericsError, PromptError
from vlmtasks.generation import Generation

PROMPTS = ["detect cat", "caption en", "answer en how many cats are on the mat?", "x", "ocr"]


@pytest.fixture(scope="module", params=["gemma", "gemma2"])
def engine(request, tmp_path_factory) -> Engine:
    return Engine.load(tiny_folder(tmp_path_factory.mktemp("tiny"), request.param), device="cpu")


@pytest.fixture(scope="module")
def images(engine) -> list[EncodedImage]:
    return engine.encode_image([tiny_picture(seed, (30, 20 + seed)) for seed in range(5)])


def close(one: Generation, other: Generation) -> bool:
    """Equal but for the last bits of the log-probabilities."""
    same = replace(one, logprobs=()) == replace(other, logprobs=())
    return same and one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_encoding(engine, images):
    assert images[3].image_size == (30, 23)
    assert images[3].tokens.shape == (16, 128)
    (alone,) = engine.encode_image([tiny_picture(3, (30, 23))])
    torch.testing.assert_close(alone.tokens, images[3].tokens)
    assert engine.encode_image([]) == []
    in_parts = engine.encode_image([tiny_picture(s) for s in range(5)], batch_size=2)
    assert len(in_parts) == 5


def test_generation(engine, images):
    (answer,) = engine.generate(images[:1], PROMPTS[:1], max_new_tokens=10)
    assert isinstance(answer, Generation)
    assert len(answer.token_ids) == len(answer.logprobs) == 10
    assert all(logprob < 0 for logprob in answer.logprobs)
    assert answer.text == engine.tokenizer.decode(answer.token_ids)


@pytest.mark.parametrize("batch_size", [1, 2, 16])
def test_batches_equal_single_runs(engine, images, batch_size):
    together = engine.generate(images, PROMPTS, max_new_tokens=15, batch_size=batch_size)
    alone = [
        engine.generate([image], [prompt], max_new_tokens=15)[0]
        for image, prompt in zip(images, PROMPTS, strict=True)
    ]
    assert all(map(close, together, alone))


@pytest.mark.parametrize("batch_size", [1, 3, 16])
@pytest.mark.parametrize("best_of", [1, 3])
def test_samples_do_not_depend_on_the_batch(engine, images, batch_size, best_of):
    options = {"temperature": 1.0, "top_p": 0.9, "seed": 5, "best_of": best_of}
    whole = engine.generate(images, PROMPTS, max_new_tokens=8, **options)
    parts = engine.generate(images, PROMPTS, max_new_tokens=8, batch_size=batch_size, **options)
    assert all(map(close, whole, parts))


def test_best_of_keeps_the_likeliest(engine, images):
    options = {"temperature": 1.0, "seed": 5, "max_new_tokens": 6}
    (best,) = engine.generate(images[:1], PROMPTS[:1], best_of=8, **options)
    one_by_one = engine.generate(images[:1] * 8, PROMPTS[:1] * 8, **options)
    assert sum(best.logprobs) == pytest.approx(max(sum(a.logprobs) for a in one_by_one))


def test_beams_are_at_least_as_likely_as_greedy(engine, images):
    """On answers of the same length, as the constraint makes them."""
    never_end = [NeverEnds()] * len(PROMPTS)
    greedy = engine.generate(images, PROMPTS, max_new_tokens=5, constraints=never_end)
    beams = engine.generate(images, PROMPTS, max_new_tokens=5, num_beams=6, constraints=never_end)
    for one, other in zip(greedy, beams, strict=True):
        assert sum(other.logprobs) >= sum(one.logprobs) - 1e-4
        assert other.finish_reason == "length"


class NeverEnds:
    def allowed(self, tokens):
        return range(4, 400)


def test_one_beam_is_greedy(engine, images):
    assert engine.generate(images, PROMPTS, max_new_tokens=5, num_beams=1) == engine.generate(
        images, PROMPTS, max_new_tokens=5
    )


def test_several_pictures_of_one_prompt(engine, images):
    (both,) = engine.generate([images[:2]], ["caption en"], max_new_tokens=8)
    (swapped,) = engine.generate([[images[1], images[0]]], ["caption en"], max_new_tokens=8)
    (one,) = engine.generate([images[0]], ["caption en"], max_new_tokens=8)
    (alone,) = engine.generate([[images[0]]], ["caption en"], max_new_tokens=8)
    assert one == alone
    assert len({both.text, swapped.text, one.text}) == 3


def test_prompts_with_different_numbers_of_pictures_in_one_batch(engine, images):
    mixed = [images[:3], images[3], images[1:3]]
    together = engine.generate(mixed, PROMPTS[:3], max_new_tokens=8)
    alone = [
        engine.generate([m], [p], max_new_tokens=8)[0]
        for m, p in zip(mixed, PROMPTS[:3], strict=True)
    ]
    assert all(map(close, together, alone))


def test_nothing_to_do(engine):
    assert engine.generate([], [], max_new_tokens=4) == []


def test_location_tokens_in_the_prompt(engine, images):
    prompt = "caption <loc0001><loc0002><loc0003><loc0004>"
    (as_tokens,) = engine.generate(images[:1], [prompt], max_new_tokens=8, location_tokens=True)
    (as_text,) = engine.generate(images[:1], [prompt], max_new_tokens=8)
    assert as_tokens != as_text


def test_steps_are_reported(engine, images):
    steps = []
    answers = engine.generate(images, PROMPTS, max_new_tokens=4, batch_size=2, on_step=steps.append)
    for row, answer in enumerate(answers):
        mine = [step for step in steps if step.row == row]
        assert tuple(step.token_id for step in mine) == answer.token_ids
        assert mine[-1].finish_reason == answer.finish_reason
        assert {step.finish_reason for step in mine[:-1]} == {None}


def test_stream_equals_generate(engine, images):
    (answer,) = engine.generate(images[:1], PROMPTS[:1], max_new_tokens=25)

    steps = list(engine.stream(images[0], PROMPTS[0], max_new_tokens=25))

    assert "".join(step.text for step in steps) == answer.text
    assert tuple(s.token_id for s in steps if s.token_id is not None) == answer.token_ids
    assert tuple(s.logprob for s in steps if s.token_id is not None) == answer.logprobs
    assert [step.finish_reason for step in steps[:-1]] == [None] * (len(steps) - 1)
    assert steps[-1].finish_reason == answer.finish_reason


def test_stream_of_an_answer_that_ends(engine, images, monkeypatch):
    ids = [*engine.tokenizer.encode("a 猫"), 1]
    network = script(engine.config.text_config.vocab_size, ids)
    monkeypatch.setattr(engine, "network", network)

    steps = list(engine.stream(images[0], "x", max_new_tokens=25))

    assert [step.text for step in steps] == ["a", " ", "", "", "", "猫"]
    assert (steps[-1].token_id, steps[-1].finish_reason) == (None, "stop")


def test_stream_works_only_as_far_as_it_is_read(engine, images, monkeypatch):
    network = script(engine.config.text_config.vocab_size, [5])
    monkeypatch.setattr(engine, "network", network)
    stream = engine.stream(images[0], "x", max_new_tokens=25)
    assert network.steps == 0
    next(stream)
    next(stream)
    stream.close()
    assert network.steps == 2


def test_gradients_of_the_caller_are_left_on(engine, images):
    stream = engine.stream(images[0], "x", max_new_tokens=3)
    next(stream)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_encoding_of_another_checkpoint_is_refused(engine, images, tmp_path):
    other = Engine.load(save_folder(tmp_path, tiny_network(seed=9)), device="cpu")
    with pytest.raises(InputError, match="was encoded by another checkpoint"):
        other.generate(images[:1], PROMPTS[:1], max_new_tokens=3)


def test_encoding_of_the_same_checkpoint_is_accepted(tmp_path):
    folder = tiny_folder(tmp_path)
    first, second = Engine.load(folder, device="cpu"), Engine.load(folder, device="cpu")
    (image,) = first.encode_image([tiny_picture()])
    assert second.generate([image], ["x"], max_new_tokens=2) == first.generate(
        [image], ["x"], max_new_tokens=2
    )


@pytest.mark.parametrize(
    "option", [{"dtype": "bfloat16"}, {"resolution": 64}], ids=["dtype", "size"]
)
def test_encoding_of_another_setting_is_refused(tmp_path, option):
    folder = tiny_folder(tmp_path)
    (image,) = Engine.load(folder, device="cpu").encode_image([tiny_picture()])
    with pytest.raises(InputError, match="another checkpoint, resolution or dtype"):
        Engine.load(folder, device="cpu", **option).generate([image], ["x"], max_new_tokens=2)


@pytest.mark.parametrize(
    ("pictures", "prompts", "options", "message"),
    [
        (1, ["a", "b"], {}, "not 1 for 2"),
        (1, "a", {}, "not 1 for a single string"),
        ([[]], ["a"], {}, "needs at least one picture"),
        ([tiny_picture()], ["a"], {}, "call engine.encode_image first"),
        ([[None]], ["a"], {}, "not NoneType"),
        (1, ["a"], {"batch_size": 0}, "batch_size must be"),
        (1, ["a"], {"constraints": []}, "constraints must be one a prompt: 0 for 1"),
        (1, ["a"], {"num_beams": 2, "on_step": print}, "beam search has no steps"),
        (1, ["a"], {"max_new_tokens": 0}, "max_new_tokens must be"),
    ],
    ids=[
        "too few pictures",
        "string",
        "no picture",
        "not encoded",
        "none",
        "batch size",
        "constraints",
        "steps of beams",
        "no tokens",
    ],
)
def test_calls_that_are_refused(engine, images, pictures, prompts, options, message):
    pictures = images[:pictures] if isinstance(pictures, int) else pictures
    with pytest.raises(InputError, match=message):
        engine.generate(pictures, prompts, **{"max_new_tokens": 3, **options})


def test_room_is_what_the_context_leaves(engine, images):
    room = engine.room(images[0], "x")
    assert room == 512 - 16 - 3
    long = "e" * (room - 1)
    assert engine.room(images[0], "x" + long) == 1
    with pytest.raises(PromptError, match="exceed the 512 positions"):
        engine.room(images[0], "xx" + long)


def test_batch_size_of_pictures(engine):
    with pytest.raises(InputError, match="batch_size must be an integer of at least 1, not 0"):
        engine.encode_image([tiny_picture()], batch_size=0)


def test_bad_numbers_in_the_tower_are_named(tmp_path):
    network = tiny_network()
    network.vision_tower.post_layernorm.bias[3] = float("nan")
    engine = Engine.load(save_folder(tmp_path, network), device="cpu")
    with pytest.raises(NumericsError, match=r"\(vision tower and projector, torch.float32\)"):
        engine.encode_image([tiny_picture()])


def test_bad_numbers_in_the_decoder_are_named(tmp_path):
    network = tiny_network()
    network.language_model.layers[1].mlp.down_proj.weight *= 1e38
    engine = Engine.load(save_folder(tmp_path, network), device="cpu")
    images = engine.encode_image([tiny_picture()])
    with pytest.raises(NumericsError, match=r"\(decoder, prompt"):
        engine.generate(images, ["x"], max_new_tokens=3)


@pytest.mark.parametrize(
    ("model_type", "options", "definition"),
    [
        ("gemma", {}, "log-softmax of the raw logits, no final soft-cap, float32"),
        ("gemma2", {}, "log-softmax of the raw logits, final soft-cap 30, float32"),
        (
            "gemma2",
            {"final_softcap": False},
            "log-softmax of the raw logits, no final soft-cap, float32",
        ),
        (
            "gemma",
            {"dtype": "bfloat16"},
            "log-softmax of the raw logits, no final soft-cap, bfloat16",
        ),
    ],
    ids=["gemma", "gemma2", "switched off", "bfloat16"],
)
def test_score_definition(tmp_path, model_type, options, definition):
    engine = Engine.load(tiny_folder(tmp_path, model_type), device="cpu", **options)
    assert engine.score_definition == definition


def test_final_softcap_changes_probabilities_and_not_the_answer(tmp_path):
    network = tiny_network("gemma2")
    text = replace(network.config.text_config, final_logit_softcapping=1.0)
    network.config = replace(network.config, text_config=text)
    folder = save_folder(tmp_path, network)
    answers = []
    for option in (True, False):
        engine = Engine.load(folder, device="cpu", final_softcap=option)
        images = engine.encode_image([tiny_picture()])
        answers += engine.generate(images, ["detect cat"], max_new_tokens=10)
    assert answers[0].token_ids == answers[1].token_ids
    assert sum(answers[0].logprobs) < sum(answers[1].logprobs) - 0.1


def test_names_of_the_package():
    import vlmtasks.engine as package

    assert package.Engine is Engine
    with pytest.raises(AttributeError, match="has no attribute 'engines'"):
        package.engines  # noqa: B018
