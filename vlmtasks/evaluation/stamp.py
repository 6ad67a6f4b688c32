"""What was run, with what: the part of a result that makes it possible to repeat it."""

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "numpy", "pillow", "pycocotools", "tokenizers", "safetensors")
CHECKPOINT_ENDINGS = frozenset({".json", ".safetensors", ".npz", ".model"})
_BLOCK = 1 << 20


def versions(extra: Iterable[str] = ()) -> dict[str, str]:
    """Versions of Python, of this package and of those packages that figures depend on."""
    found = {"python": platform.python_version()}
    for name in ("vlmtasks", *PACKAGES, *extra):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def file_hash(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's content, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def checkpoint_hash(folder: str | os.PathLike[str]) -> str:
    """SHA-256 over names and contents of the weights, tokenizer and settings in a folder.

    Folders in it do not count: they are no part of the checkpoint, and may be our own output.
    """
    digest = hashlib.sha256()
    for path in sorted(Path(folder).iterdir()):
        if path.suffix in CHECKPOINT_ENDINGS and path.is_file():
            digest.update(f"{path.name}\0{file_hash(path)}\n".encode())
    return digest.hexdigest()


def commit() -> str | None:
    """The git commit of this package's own checkout, with "+" for changed files; None elsewhere."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if changed else "")


def machine() -> str:
    """The processor and how many cores this process may use."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} core{'' if cores == 1 else 's'}"


def make_stamp(
    command: str, protocol: Mapping[str, Any], head: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything to repeat a result: how it was asked for, what was asked, with what, where.

    head: that of the run, which says what made the predictions; {} for those of another tool.
    It holds no time, so that the same run twice gives the same file.
    """
    return {
        "command": command,
        "protocol": dict(protocol),
        "checkpoint": head.get("checkpoint"),
        "data": head.get("data"),
        "versions": head.get("versions") or versions(),
        **(head.get("note") or where_and_what()),
    }


def where_and_what() -> dict[str, Any]:
    """The commit and the machine."""
    return {"commit": commit(), "machine": machine()}


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=20
    )
    return done.stdout.strip()
