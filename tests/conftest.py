"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# a busy machine is no failure
settings.register_profile("any-speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-speed")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real files; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("VLMTASKS_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(
            "real test data is absent: put it in ../shared/data or set VLMTASKS_TEST_DATA to its folder"
        )
    return folder


@pytest.fixture(scope="session")
def drawings() -> None:
    """The demo's rendered drawings; tests that need them skip where they were never fetched."""
    from vlmtasks.demo.assets import PACKS, drawings_path

    if not all(drawings_path(vendor).is_file() for vendor in PACKS):
        pytest.skip("the demo's drawings are not in the cache: python -m vlmtasks.demo.assets")
