"""Ask a picture in plain words, get boxes, masks or text.

    import vlmtasks
    found = vlmtasks.detect("photo.jpg", "cat ; dog")   # vlmtasks.Detections

The names below are loaded when they are first used, so that `import vlmtasks` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vlmtasks import errors

if TYPE_CHECKING:
    from vlmtasks.api import (
        VLM,
        answer,
        caption,
        caption_box,
        detect,
        encode_image,
        load,
        ocr,
        question,
        segment,
    )
    from vlmtasks.generation import Generation
    from vlmtasks.results import Detection, Detections
    from vlmtasks.tokens import ParsedObject, parse_objects

__version__ = "0.1.0"

__all__ = [
    "VLM",
    "Detection",
    "Detections",
    "Generation",
    "ParsedObject",
    "answer",
    "caption",
    "caption_box",
    "detect",
    "encode_image",
    "errors",
    "load",
    "ocr",
    "parse_objects",
    "question",
    "segment",
]

_HOMES = {
    "Detection": "vlmtasks.results",
    "Detections": "vlmtasks.results",
    "Generation": "vlmtasks.generation",
    "ParsedObject": "vlmtasks.tokens",
    "parse_objects": "vlmtasks.tokens",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'vlmtasks' has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "vlmtasks.api")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
