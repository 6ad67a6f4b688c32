"""The tasks that PaliGemma was trained on: a prompt from arguments, a result from an answer.

Nothing here needs a tensor library: a task never sees the model.
"""

from types import MappingProxyType
from typing import Any

from vlmtasks.tasks.answer import ANSWER
from vlmtasks.tasks.base import Task, TextTask
from vlmtasks.tasks.caption import CAPTION, CAPTION_BOX
from vlmtasks.tasks.detect import DETECT, Detect
from vlmtasks.tasks.ocr import OCR
from vlmtasks.tasks.question import QUESTION
from vlmtasks.tasks.segment import SEGMENT, MaskDecoder, Segment

TASKS: MappingProxyType[str, Any] = MappingProxyType(
    {task.name: task for task in (CAPTION, ANSWER, QUESTION, OCR, DETECT, SEGMENT, CAPTION_BOX)}
)

__all__ = [
    "ANSWER",
    "CAPTION",
    "CAPTION_BOX",
    "DETECT",
    "OCR",
    "QUESTION",
    "SEGMENT",
    "TASKS",
    "Detect",
    "MaskDecoder",
    "Segment",
    "Task",
    "TextTask",
]
