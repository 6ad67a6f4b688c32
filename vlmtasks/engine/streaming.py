"""Text that grows token by token."""

from vlmtasks.engine.tokenizer import Tokenizer


class TextStream:
    """Turns ids into pieces of text whose concatenation is the text of all ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._given = ""

    def add(self, token_id: int) -> str:
        """The text that this token makes certain.

        A run of byte tokens is held back until it ends: one more byte may change all of it.
        """
        if self._tokenizer.is_silent(token_id):
            return ""
        self._ids.append(token_id)
        if self._tokenizer.is_byte(token_id):
            return ""
        return self._advance(self._tokenizer.decode(self._ids))

    def finish(self) -> str:
        """What was held back."""
        return self._advance(self._tokenizer.decode(self._ids))

    def _advance(self, text: str) -> str:
        new = text[len(self._given) :]
        self._given = text
        return new
