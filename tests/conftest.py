"""Fixtures shared by all tests."""

import os
import secrets
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# a busy machine is no failure
settings.register_profile("any-speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-speed")

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure() -> None:
    """A fresh seed for the parity tests of this run, unless the caller gives one."""
    os.environ.setdefault("VLMTASKS_PARITY_SEED", str(secrets.randbits(32)))


def pytest_report_header() -> str:
    return f"parity tests: VLMTASKS_PARITY_SEED={os.environ['VLMTASKS_PARITY_SEED']}"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real files; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("VLMTASKS_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(
            "real test data is absent: put it in ../shared/data or set VLMTASKS_TEST_DATA to its "
            "folder"
        )
    return folder


@pytest.fixture(scope="session")
def drawings() -> None:
    """The demo's rendered drawings; tests that need them skip where they were never fetched."""
    from vlmtasks.demo.assets import PACKS, drawings_path
    from vlmtasks.demo.icons import icons_path

    if not all(path.is_file() for path in (*map(drawings_path, PACKS), icons_path())):
        pytest.skip("the demo's drawings are not in the cache: python -m vlmtasks.demo.assets")


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder with random weights, 32 px, its own tokenizer and no mask codec."""
    from tiny_checkpoints import tiny_folder

    return tiny_folder(tmp_path_factory.mktemp("tiny") / "checkpoint")


@pytest.fixture(scope="session")
def tiny_codec() -> Any:
    """A mask codec with random weights."""
    import torch

    from vqvae import MaskCodec
    from vqvae.model import MaskVQVAE

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MaskCodec(MaskVQVAE().eval().requires_grad_(False))
