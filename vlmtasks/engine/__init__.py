"""The engine: a PaliGemma checkpoint in, `Generation`s out.

Importing this package loads no tensor library; the first use of a name below does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vlmtasks.engine.encoded_image import EncodedImage
    from vlmtasks.engine.engine import Engine

__all__ = ["EncodedImage", "Engine"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("vlmtasks.engine.engine"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
