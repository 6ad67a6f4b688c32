"""Some seconds of every fuzz target, always the same cases; `make fuzz` runs them for long."""

import logging
from pathlib import Path

import pytest

from tests.fuzz.cases import run_case
from tests.fuzz.targets import TARGETS

SEED = 0


@pytest.mark.parametrize("name", TARGETS)
def test_only_errors_of_our_own(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    caplog.set_level(logging.CRITICAL)
    target = TARGETS[name]
    for number in range(target.count):
        finding = run_case(target, SEED, number, tmp_path)
        again = f"python -m tests.fuzz {name} --seed {SEED} --case {number}"
        assert finding is None, f"{again}\n{finding.kind}\n{finding.details}"
