"""Checkpoints by their name on the Hugging Face hub, through its own client.

Only weights in safetensors, JSON and tokenizer files are fetched. The client's environment is
respected: HF_HOME, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE.
"""

import re
from pathlib import Path

from vlmtasks.errors import CheckpointError

PATTERNS = ("*.safetensors", "*.json", "tokenizer*")
_MODEL_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_model_id(source: str) -> bool:
    """Whether this looks like "organisation/name"."""
    return _MODEL_ID.fullmatch(source) is not None and ".." not in source and "--" not in source


def fetch(model_id: str, *, revision: str | None = None, token: str | None = None) -> Path:
    """The folder of a model in the client's cache, fetched where it is not there yet.

    revision: branch, tag or commit. token: None takes the one the client knows.
    Raises CheckpointError saying what to do.
    """
    try:
        return _snapshot(model_id, revision, token, offline=False)
    except Exception as error:
        raise CheckpointError(_explanation(error, model_id, revision)) from error


def cached(model_id: str, *, revision: str | None = None) -> Path | None:
    """The folder of a model that was fetched before, or None. Never uses the network."""
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return _snapshot(model_id, revision, None, offline=True)
    except (LocalEntryNotFoundError, HFValidationError):  # not there, or no name of the hub
        return None


def _snapshot(model_id: str, revision: str | None, token: str | None, *, offline: bool) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            model_id,
            revision=revision,
            token=token,
            allow_patterns=list(PATTERNS),
            ignore_patterns=["*/*"],
            local_files_only=offline,
        )
    )


def _explanation(error: Exception, model_id: str, revision: str | None) -> str:
    from huggingface_hub import errors

    where = f"{model_id!r}" + (f" at revision {revision!r}" if revision else "")
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{where} is gated: accept its terms on the hub, then pass token=… or run "
            f"`hf auth login` ({_first_line(error)})"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"the hub has no model {where}, or it is private: check the name, or pass token=… "
            f"({_first_line(error)})"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{model_id!r} has no revision {revision!r}: pass a branch, tag or commit it has"
    if isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled)):
        return (
            f"{where} is neither a folder nor in the cache, and the hub cannot be reached (offline "
            "mode or no network): fetch it once with a network, or pass the folder of a checkpoint "
            f"({_first_line(error)})"
        )
    return f"{where} could not be fetched from the hub: {type(error).__name__}: {error}"


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
