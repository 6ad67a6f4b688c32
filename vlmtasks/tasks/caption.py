"""Describe a picture, or one box of it."""

from vlmtasks import prompts
from vlmtasks.tasks.base import TextTask

# big_vision cuts COCO captions at 32 tokens; "describe" answers need more (DOCCI: 192).
CAPTION = TextTask("caption", 192, prompts.caption)
CAPTION_BOX = TextTask("caption_box", 64, prompts.caption_box)
