"""Find the question to which an answer belongs."""

from vlmtasks import prompts
from vlmtasks.tasks.base import TextTask

QUESTION = TextTask("question", 48, prompts.question)
