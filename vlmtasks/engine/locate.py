"""From what a user calls a checkpoint to the files on this machine."""

from pathlib import Path

from vlmtasks.engine import hub
from vlmtasks.engine.lora import CONFIG_FILE, LoraConfig, has_adapter, is_adapter
from vlmtasks.errors import CheckpointError, InputError, MissingFileError


def locate(
    source: str | Path,
    adapter: str | Path | None = None,
    *,
    revision: str | None = None,
    token: str | None = None,
) -> tuple[Path, Path | None]:
    """The model's folder (or `.npz` file), and the adapter's folder if there is one.

    A `source` that is an adapter itself leads to its base, if that is on this machine; a base is
    never fetched without being asked for by name.
    """
    model = _find(source, revision, token)
    extra = None if adapter is None else _find(adapter, None, token)
    if extra is not None and not (extra.is_dir() and has_adapter(extra)):
        raise CheckpointError(
            f"adapter={str(adapter)!r} holds no adapter_config.json; pass the folder "
            "that peft wrote the adapter to"
        )
    if not (model.is_dir() and is_adapter(model)):
        if extra is None and model.is_dir() and has_adapter(model):
            raise CheckpointError(
                f"{model} holds a whole model and a LoRA adapter; to merge them pass the folder as "
                f"adapter= too, to use the model alone move {CONFIG_FILE} away"
            )
        return model, extra
    if extra is not None:
        raise InputError(
            f"{str(source)!r} is an adapter itself; pass its base as source and one adapter"
        )
    return _base_of(model), model


def _find(source: str | Path, revision: str | None, token: str | None) -> Path:
    if not isinstance(source, (str, Path)) or not str(source):
        raise InputError(f"a checkpoint is a path or a name on the hub, not {source!r}")
    path = _path(source)
    if path.is_dir() or (path.is_file() and path.suffix == ".npz"):
        return path
    if path.is_file():
        raise CheckpointError(f"{path} is a file; pass the folder it is in, or a big_vision .npz")
    if isinstance(source, str) and hub.is_model_id(source):
        return hub.fetch(source, revision=revision, token=token)
    raise MissingFileError(
        f"{str(source)!r} is neither a folder nor a name on the hub; pass the path of a checkpoint "
        'folder, or "organisation/name"'
    )


def _path(name: str | Path) -> Path:
    """With ~ for the home folder. CheckpointError where no file can have this name."""
    path = Path(name)
    try:
        path = path.expanduser()
        path.exists()
    except (OSError, RuntimeError, UnicodeEncodeError) as error:  # RuntimeError: ~nobody
        raise CheckpointError(f"{str(name)[:80]!r} cannot be opened: {error!s:.200}") from None
    return path


def _base_of(adapter: Path) -> Path:
    config = LoraConfig.from_folder(adapter)
    name = config.base_model_name_or_path
    if name:
        for path in (_path(name), adapter / name, adapter.parent / Path(name).name):
            if path.is_dir() and not is_adapter(path):
                return path
        if hub.is_model_id(name):
            found = hub.cached(name, revision=config.revision)
            if found is not None:
                return found
    raise MissingFileError(
        f"{adapter} is a LoRA adapter, not a model, and its base {name!r} is not on this machine; "
        f'load the base with adapter="{adapter}"'
    )
