"""The engine's network against transformers on configurations drawn from the seed of this run.

pytest prints the seed in its header; VLMTASKS_PARITY_SEED=… repeats a run.
"""

import os

import pytest

pytest.importorskip("transformers", reason="pip install 'vlmtasks[reference]' to compare with it")

from benchmarks import parity

SEED = int(os.environ["VLMTASKS_PARITY_SEED"])
CONFIGURATIONS = 32


@pytest.mark.parametrize("index", range(CONFIGURATIONS), ids=lambda i: f"seed{SEED}-{i}")
def test_model_equals_transformers(index):
    table = parity.Table()

    parity.compare_case(parity.draw_case(SEED, index), table)

    too_far = {row.what: row.largest for row in table.rows.values() if row.largest > row.allowed}
    assert not too_far
    assert len(table.rows) == 9


def test_bfloat16_is_as_close_to_float32_as_transformers():
    assert parity.compare_bfloat16(SEED, 10) <= parity.BFLOAT16_BOUND


def test_greedy_answers_are_no_echo():
    """The weights are drawn so that the layers decide: an echo would pass the comparison."""
    case = parity.draw_case(7, 1)

    trace = parity.reference_trace(case, parity.reference_model(case))

    assert len(set(trace.ids)) > 10


@pytest.mark.parametrize("name", ["attn_logit_softcapping", "sliding_window"])
def test_a_wrong_setting_is_noticed(name):
    """The comparison itself is sharp: one setting off, and it fails."""
    from dataclasses import replace

    case = parity.draw_case(7, 1)
    text = replace(case.config.text_config, attn_logit_softcapping=1.0, sliding_window=3)
    case = replace(case, config=replace(case.config, text_config=text))
    reference = parity.reference_model(case)
    wrong = replace(case.config, text_config=replace(text, **{name: None}))

    gaps = parity.compare_stages(case, reference, parity.our_model(reference, wrong))

    assert gaps["decoder"] > parity.BOUND
