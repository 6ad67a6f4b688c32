import math

import pytest
import torch
from scripted_network import ScriptedNetwork, script

from vlmtasks.engine.beam import beam_search
from vlmtasks.engine.decoding import Answer, decode_steps
from vlmtasks.engine.decoding_options import DecodingOptions
from vlmtasks.engine.prompt_ids import pad_ids
from vlmtasks.engine.token_choice import TokenLimits, row_seed
from vlmtasks.errors import InputError, NumericsError

EOS = 1
V = 12
A, B, C, D, E, F = 5, 6, 7, 8, 9, 10
LIMITS = TokenLimits(frozenset({EOS}), torch.ones(V, dtype=torch.bool))


def run(network, rows=1, limits=LIMITS, constraints=None, first_row=0, **options) -> list[Answer]:
    options = DecodingOptions(**{"max_new_tokens": 8, **options})
    prompts = pad_ids([[2, 3]] * rows, 0, "cpu")
    answers = [Answer() for _ in range(rows * options.best_of)]
    for steps in decode_steps(network, prompts, [], options, limits, constraints, first_row):
        for step in steps:
            answers[step.row].add(step)
    return answers


def search(network, limits=LIMITS, constraint=None, **options) -> Answer:
    prompt = pad_ids([[2, 3]], 0, "cpu")
    options = DecodingOptions(**{"max_new_tokens": 8, "num_beams": 2, **options})
    return beam_search(network, prompt, torch.empty(0), options, limits, constraint)


def logprob(*scores: float, of: int) -> float:
    return float(torch.tensor(scores).log_softmax(0)[of])


def table(transitions: dict[tuple[int, ...], dict[int, float]]) -> ScriptedNetwork:
    """Probabilities of the next token after some tokens; the rest is spread thinly."""

    def scores(_, tokens):
        given = transitions.get(tokens, {EOS: 1.0})
        rest = max(1e-9, (1 - sum(given.values())) / (V - len(given)))
        return [math.log(given.get(token, rest)) for token in range(V)]

    return ScriptedNetwork(scores)


def test_rows_stop_one_by_one_and_leave_the_batch():
    network = script(V, [A, EOS, B, C], [D, E, F, EOS])

    first, second = run(network, rows=2)

    assert (first.token_ids, first.finish_reason) == ([A], "stop")
    assert (second.token_ids, second.finish_reason) == ([D, E, F], "stop")
    assert network.batches == [2, 2, 1, 1]
    assert network.positions == [[2, 2], [3], [4]]


@pytest.mark.parametrize(
    ("answer", "reason", "ids"),
    [([A, B, C, EOS], "stop", [A, B, C]), ([A, B, C, D], "length", [A, B, C, D])],
    ids=["eos is the last allowed token", "no eos"],
)
def test_finish_reason(answer, reason, ids):
    (result,) = run(script(V, answer), max_new_tokens=4)
    assert (result.finish_reason, result.token_ids) == (reason, ids)


def test_every_stop_id_stops():
    limits = TokenLimits(frozenset({EOS, F}), LIMITS.choosable)
    (result,) = run(script(V, [A, F]), limits=limits)
    assert (result.token_ids, result.finish_reason) == ([A], "stop")


def test_logprobs_are_of_the_raw_logits():
    limits = TokenLimits(frozenset({EOS}), torch.arange(V) != B)
    network = ScriptedNetwork(lambda _, tokens: [0.0] * A + [2.0, 5.0, 1.0] + [0.0] * 4)

    (result,) = run(network, limits=limits, max_new_tokens=1)

    assert result.token_ids == [A]  # B is better but may not be produced
    expected = logprob(*([0.0] * A), 2.0, 5.0, 1.0, *([0.0] * 4), of=A)
    assert result.logprobs == pytest.approx([expected])


def test_total_includes_the_end_token():
    network = table({(): {A: 0.5, EOS: 0.4}, (A,): {EOS: 0.25, B: 0.2}})
    (result,) = run(network)
    assert result.logprobs == pytest.approx([math.log(0.5)])
    assert result.total_logprob == pytest.approx(math.log(0.5 * 0.25))


def test_greedy_takes_no_random_numbers():
    state = torch.get_rng_state()
    run(script(V, [A, B, C]))
    run(table({}), temperature=1.0, seed=3)
    assert torch.equal(state, torch.get_rng_state())


def sampled(rows=1, **options):
    network = ScriptedNetwork(lambda _, tokens: [0.0] * V)
    limits = TokenLimits(frozenset(), LIMITS.choosable)
    options = {"temperature": 1.0, "max_new_tokens": 12, **options}
    return [answer.token_ids for answer in run(network, rows=rows, limits=limits, **options)]


def test_same_seed_same_tokens():
    assert sampled(seed=4) == sampled(seed=4)
    assert sampled(seed=4) != sampled(seed=5)


def test_without_seed_tokens_differ():
    assert sampled() != sampled()


def test_rows_of_one_seed_differ_and_do_not_depend_on_the_batch():
    together = sampled(rows=3, seed=4)
    alone = [sampled(seed=4, first_row=row)[0] for row in range(3)]
    assert together == alone
    assert len({tuple(ids) for ids in together}) == 3


def test_row_seeds_are_apart():
    seeds = {row_seed(seed, row) for seed in range(50) for row in range(50)}
    assert len(seeds) == 2500


def test_temperature_sharpens():
    network = table({(): {A: 0.6, B: 0.4}})
    counts = {0.1: 0, 1.0: 0}
    for temperature in counts:
        for seed in range(60):
            (result,) = run(network, temperature=temperature, seed=seed, max_new_tokens=1)
            counts[temperature] += result.token_ids == [A]
    assert counts[0.1] >= 57  # 0.6¹⁰ : 0.4¹⁰ is 58 : 1
    assert 20 < counts[1.0] < 52


def test_tiny_temperature_is_greedy():
    (result,) = run(script(V, [A, B, EOS]), temperature=1e-30, seed=0)
    assert result.token_ids == [A, B]


def test_top_p_keeps_the_smallest_set():
    network = table({(): {A: 0.5, B: 0.3, C: 0.15}})
    seen = {
        run(network, temperature=1.0, top_p=0.6, seed=seed, max_new_tokens=1)[0].token_ids[0]
        for seed in range(80)
    }
    assert seen == {A, B}


def test_top_p_keeps_at_least_the_best():
    network = table({(): {A: 0.5, B: 0.4}})
    for seed in range(20):
        (result,) = run(network, temperature=1.0, top_p=1e-6, seed=seed, max_new_tokens=1)
        assert result.token_ids == [A]


def test_best_of_gives_every_sample_of_a_prompt():
    network = table({(): {A: 0.5, B: 0.5}, (A,): {EOS: 1.0}, (B,): {EOS: 1.0}})
    answers = run(network, rows=2, temperature=1.0, seed=1, best_of=8)
    assert len(answers) == 16
    assert {tuple(answer.token_ids) for answer in answers} == {(A,), (B,)}


class Allow:
    """Allows ids by the number of tokens so far; None after the list."""

    def __init__(self, *steps):
        self.steps = steps

    def allowed(self, tokens):
        return self.steps[len(tokens)] if len(tokens) < len(self.steps) else None


@pytest.mark.parametrize("raw", [True, False])
def test_constraint_of_one_row(raw):
    network = script(V, [A, B, EOS], [A, B, EOS])
    constraints = [Allow([C, D], range(B, C)), None]

    first, second = run(network, rows=2, constraints=constraints, raw_logprobs=raw)

    assert (first.token_ids, second.token_ids) == ([C, B], [A, B])


@pytest.mark.parametrize("raw", [True, False])
def test_tokens_do_not_depend_on_raw_logprobs(raw):
    network = table({(): {A: 0.4, C: 0.3, D: 0.2}, (C,): {B: 0.5, EOS: 0.2}})
    (result,) = run(network, constraints=[Allow([D, C], [EOS, E])], raw_logprobs=raw)
    assert (result.token_ids, result.finish_reason) == ([C], "stop")


def test_head_computes_only_the_allowed_rows():
    network = table({(): {A: 0.4, C: 0.3, D: 0.2}})
    (result,) = run(network, constraints=[Allow([D, C], [EOS])], raw_logprobs=False)
    assert network.head_rows == [[C, D], [EOS]]
    assert result.logprobs == pytest.approx([math.log(0.3 / 0.5)])


def test_head_computes_the_union_of_the_rows():
    network = script(V, [A, EOS], [B, EOS])
    constraints = [Allow([A, C], [EOS]), Allow([B], [EOS])]
    first, second = run(network, rows=2, constraints=constraints, raw_logprobs=False)
    assert network.head_rows == [[A, B, C], [EOS]]
    assert (first.token_ids, second.token_ids) == ([A], [B])


def test_logprobs_are_raw_under_a_constraint():
    network = table({(): {A: 0.4, C: 0.3, D: 0.2}})
    (result,) = run(network, constraints=[Allow([D, C], [EOS])])
    assert result.logprobs == pytest.approx([math.log(0.3)])


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("allowed", [[], [B]], ids=["nothing", "only what may not be produced"])
def test_constraint_must_allow_something(allowed, raw):
    limits = TokenLimits(frozenset({EOS}), torch.arange(V) != B)
    with pytest.raises(InputError, match="the constraint allows"):
        run(script(V, [A]), limits=limits, constraints=[Allow(allowed)], raw_logprobs=raw)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_bad_numbers_are_named(bad):
    network = ScriptedNetwork(lambda _, tokens: [0.0] * 11 + [bad if len(tokens) == 2 else 0.0])
    limits = TokenLimits(frozenset(), LIMITS.choosable)
    with pytest.raises(NumericsError, match=r"NaN or infinity \(decoder, new token 3"):
        run(network, limits=limits)


def test_bad_numbers_in_the_prompt_are_named():
    with pytest.raises(NumericsError, match=r"decoder, prompt"):
        run(ScriptedNetwork(lambda _, tokens: [math.nan] * V))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens must be an integer of at least 1, not 0"),
        ({"max_new_tokens": 2.0}, "max_new_tokens must be an integer"),
        ({"max_new_tokens": True}, "max_new_tokens must be an integer"),
        ({"num_beams": 0}, "num_beams must be"),
        ({"best_of": -1}, "best_of must be"),
        ({"num_beams": 1001}, "num_beams must be at most 1000"),
        ({"temperature": 1.0, "best_of": 10**9}, "best_of must be at most 1000"),
        ({"temperature": -0.1}, "temperature must be a number from 0"),
        ({"temperature": 10**400}, "temperature must be a number from 0"),
        ({"temperature": math.nan}, "temperature must be"),
        ({"temperature": math.inf}, "temperature must be"),
        ({"temperature": "hot"}, "temperature must be"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p must be a number in"),
        ({"temperature": 1.0, "top_p": 1.5}, "top_p must be a number in"),
        ({"seed": 1.5}, "seed must be an integer or None"),
        ({"top_p": 0.9}, "need sampling"),
        ({"best_of": 3}, "need sampling"),
        ({"num_beams": 2, "temperature": 1.0}, "leave temperature at 0"),
        ({"num_beams": 2, "raw_logprobs": False}, "by their raw_logprobs"),
        ({"best_of": 2, "temperature": 1.0, "raw_logprobs": False}, "by their raw_logprobs"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_options_that_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        DecodingOptions(**{"max_new_tokens": 4, **options})


def test_beams_find_what_greedy_misses():
    """A looks best at first, but every way on from it is unlikely."""
    network = table(
        {(): {A: 0.5, B: 0.4}, (A,): {C: 0.3, D: 0.3, E: 0.3}, (B,): {EOS: 0.9}, (A, C): {EOS: 1}}
    )
    (greedy,) = run(network)
    best = search(network)
    assert greedy.token_ids[0] == A
    assert (best.token_ids, best.finish_reason) == ([B], "stop")
    assert best.logprobs == pytest.approx([math.log(0.4)])
    assert best.total_logprob == pytest.approx(math.log(0.4 * 0.9))


def test_beams_have_no_length_penalty():
    network = table({(): {EOS: 0.3, A: 0.4}, (A,): {B: 0.7}, (A, B): {EOS: 1.0}})
    assert search(network).token_ids == []  # 0.3 > 0.4 · 0.7


def test_beams_stop_when_no_live_one_can_win():
    network = table({(): {EOS: 0.6, A: 0.3}})
    search(network)
    assert network.steps == 1


def test_beams_equal_exhaustive_search():
    generator = torch.Generator().manual_seed(1)
    drawn: dict[tuple[int, ...], list[float]] = {}

    def scores(_, tokens):
        if tokens not in drawn:
            drawn[tokens] = (torch.randn(5, generator=generator) * 2).tolist()
        return drawn[tokens]

    def every(tokens, total):
        logprobs = torch.tensor(scores(0, tokens)).log_softmax(0).tolist()
        yield total + logprobs[EOS], tokens
        if len(tokens) < 3:
            for token in (0, 2, 3, 4):
                yield from every((*tokens, token), total + logprobs[token])

    total, tokens = max(every((), 0.0))
    limits = TokenLimits(frozenset({EOS}), torch.ones(5, dtype=torch.bool))

    best = search(ScriptedNetwork(scores), limits=limits, num_beams=100, max_new_tokens=4)

    assert tuple(best.token_ids) == tokens
    assert best.total_logprob == pytest.approx(total, abs=1e-5)


def test_beams_that_never_end_are_cut():
    network = script(V, [A])
    limits = TokenLimits(frozenset(), LIMITS.choosable)
    best = search(network, limits=limits, max_new_tokens=3)
    assert (len(best.token_ids), best.finish_reason) == (3, "length")


def test_beams_keep_to_the_constraint():
    network = table({(): {A: 0.5, B: 0.2, C: 0.2}, (C,): {EOS: 0.9}, (B,): {EOS: 0.5}})
    best = search(network, constraint=Allow([B, C], [EOS]))
    assert best.token_ids == [C]


def test_beams_name_bad_numbers():
    with pytest.raises(NumericsError, match="decoder, prompt"):
        search(ScriptedNetwork(lambda _, tokens: [math.nan] * V))
