"""Answer a question about a picture."""

from vlmtasks import prompts
from vlmtasks.tasks.base import TextTask

# big_vision: 32 for VQA and DocVQA, 48 for ChartQA, InfoVQA and ST-VQA
ANSWER = TextTask("answer", 48, prompts.answer)
