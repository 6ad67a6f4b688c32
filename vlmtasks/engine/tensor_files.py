"""The tensors of a folder's safetensors files, memory-mapped: reading them costs nothing yet."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from vlmtasks.engine.folder_files import member, parse_json, read_json
from vlmtasks.errors import CheckpointError, MissingFileError
from vlmtasks.lfs import pointer_hint

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the limit of the format


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors by the names in the file, as views of the mapped files on the CPU.

    Takes `model.safetensors` (as transformers does, an index that is left over beside it is not
    looked at), or the shards that `model.safetensors.index.json` lists, or the only
    `*.safetensors` file of the folder. Raises MissingFileError (missing shards, or none at all) and
    CheckpointError (damaged or contradictory files, names that lead out of the folder).
    """
    if member(folder, SINGLE_FILE).is_file():
        return read_file(folder, SINGLE_FILE)
    index = read_json(folder, INDEX_FILE, required=False)
    if index is not None:
        return _read_shards(folder, index)
    found = sorted(p.name for p in folder.glob("*.safetensors") if not p.name.startswith("adapter"))
    if len(found) == 1:
        return read_file(folder, found[0])
    raise MissingFileError(_nothing_to_read(folder, found))


def has_weights(folder: Path) -> bool:
    """Whether the folder holds weights of a model in a form that is read here; none is opened."""
    names = [path.name for path in folder.glob("*.safetensors*")]
    return any(not name.startswith("adapter") for name in names) or any(folder.glob("*.npz"))


def read_file(folder: Path, name: str) -> dict[str, Tensor]:
    """All tensors of one safetensors file of the folder."""
    path = member(folder, name)
    if not path.is_file():
        raise MissingFileError(f"{folder} holds no {name}")
    _check_header(path)
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {key: file.get_tensor(key) for key in file.keys()}
    # AttributeError, KeyError: kinds of numbers that this torch does not have
    except (SafetensorError, OSError, ValueError, RuntimeError, AttributeError, KeyError) as error:
        raise CheckpointError(
            f"{path} is not a readable safetensors file ({error}); was it copied completely?"
            f"{pointer_hint(path)}"
        ) from error


def _check_header(path: Path) -> None:
    """Refuses what the library lets pass: a tensor that the header names twice."""
    size = path.stat().st_size
    if not size:
        raise CheckpointError(
            f"{path} is empty (0 bytes); was it copied completely? Fetch it again"
        )
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        # a length that cannot be is for the library to explain
        if 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            parse_json(file.read(length), path)


def _read_shards(folder: Path, index: dict[str, Any]) -> dict[str, Tensor]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{folder / INDEX_FILE}: weight_map must be an object with entries")
    shards: dict[str, set[str]] = {}
    for key, name in weight_map.items():
        member(folder, name)  # refuses bad names before anything is opened
        shards.setdefault(name, set()).add(key)
    missing = [name for name in sorted(shards) if not member(folder, name).is_file()]
    if missing:
        raise MissingFileError(
            f"{folder} lacks {len(missing)} of {len(shards)} shards that {INDEX_FILE} lists: "
            f"{', '.join(missing[:10])}; fetch them again"
        )
    tensors: dict[str, Tensor] = {}
    for name, keys in sorted(shards.items()):
        shard = read_file(folder, name)
        if shard.keys() != keys:
            lost, extra = sorted(keys - shard.keys()), sorted(shard.keys() - keys)
            raise CheckpointError(
                f"{folder / name} and {INDEX_FILE} disagree: not in the shard {lost[:5]}, "
                f"not in the index {extra[:5]}; the files belong to different checkpoints"
            )
        tensors.update(shard)
    return tensors


def _nothing_to_read(folder: Path, found: list[str]) -> str:
    if found:
        return (
            f"{folder} holds {len(found)} safetensors files ({', '.join(found[:5])}) but no "
            f"{INDEX_FILE} to say how they belong together"
        )
    pickles = sorted(
        p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt")
    )
    if pickles:
        return (
            f"{folder} holds its weights only as {', '.join(pickles[:3])}: pickle files can run "
            "code and are never opened here; convert them to safetensors, for example with "
            "transformers: model.save_pretrained(folder)"
        )
    return f"{folder} holds no {SINGLE_FILE}, no {INDEX_FILE} and no big_vision .npz"
