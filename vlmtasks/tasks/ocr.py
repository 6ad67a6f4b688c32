"""Read the text in a picture."""

from vlmtasks import prompts
from vlmtasks.tasks.base import TextTask

OCR = TextTask("ocr", 256, prompts.ocr)
