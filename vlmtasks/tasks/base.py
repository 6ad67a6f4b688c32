"""What a task is: the words that ask the model, and the reading of its answer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from vlmtasks.generation import Generation


class Task(Protocol):
    """One thing that the model can be asked for.

    name: the verb of the public surface.
    max_new_tokens: where an answer is cut, unless the caller says otherwise.
    """

    @property
    def name(self) -> str: ...

    @property
    def max_new_tokens(self) -> int: ...

    def prompt(self, *args: Any, **kwargs: Any) -> str:
        """The prefix, without <bos> and final line end. InputError for wrong arguments."""
        ...

    def parse(self, generation: Generation, *args: Any, **kwargs: Any) -> Any:
        """The result of an answer. No answer of a model raises."""
        ...


@dataclass(frozen=True)
class TextTask:
    """A task whose result is the text of the answer, stripped."""

    name: str
    max_new_tokens: int
    prompt: Callable[..., str]

    def parse(self, generation: Generation) -> str:
        return generation.text.strip()
