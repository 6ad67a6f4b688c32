"""Token ids written as text that the parser reads, with the way back from characters to ids."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from vlmtasks.records import LOC_BINS, SEG_CODES, ParsedObject


class TokenVocabulary(Protocol):
    """What the parser has to know of a tokenizer to read ids."""

    @property
    def loc_start(self) -> int:
        """The id of <loc0000>; the other 1023 follow."""
        ...

    @property
    def seg_start(self) -> int:
        """The id of <seg000>; the other 127 follow."""
        ...

    @property
    def size(self) -> int:
        """The number of ids that mean something; larger and negative ones are skipped."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """<eos>, <bos>, <pad> and their like: they end a label and are never part of it."""
        ...

    def decode(self, ids: Sequence[int], /) -> str:
        """The text of ids within 0..size-1."""
        ...


_SPELLED_OUT = "\udc3c"  # stands for a "<" that is a character; no decoder can produce it


class RenderedIds:
    """Ids written as text that the text parser reads, with the way back from characters to ids."""

    def __init__(self, ids: list[int], vocabulary: TokenVocabulary) -> None:
        self._vocabulary = vocabulary
        self._marks: dict[int, str | None] = {}
        self._pieces: list[str] = []
        self._starts: list[int] = []  # first character of each piece
        self._spans: list[tuple[int, int]] = []  # the ids that each piece stands for
        self._length = 0
        self._render(ids)
        self.text = "".join(self._pieces)

    def restore(self, found: ParsedObject) -> ParsedObject:
        """Bring a record of `text` back to the ids: its span, and characters that stood in."""
        first = bisect_right(self._starts, found.span[0]) - 1
        last = bisect_right(self._starts, found.span[1] - 1) - 1
        span = self._spans[first][0], self._spans[last][1]
        return replace(found, label=found.label.replace(_SPELLED_OUT, "<"), span=span)

    def _render(self, ids: list[int]) -> None:
        words: list[tuple[int, int]] = []
        for index, token_id in enumerate(ids):
            if token_id not in self._marks:
                self._marks[token_id] = self._mark(token_id)
            mark = self._marks[token_id]
            if mark is None:
                words.append((index, token_id))
            else:
                self._add_words(words)
                words = []
                self._add(mark, index, index + 1)
        self._add_words(words)

    def _mark(self, token_id: int) -> str | None:
        """The text of a token with a meaning in the grammar, None for a piece of a word."""
        vocabulary = self._vocabulary
        if 0 <= token_id - vocabulary.loc_start < LOC_BINS:
            return f"<loc{token_id - vocabulary.loc_start:04d}>"
        if 0 <= token_id - vocabulary.seg_start < SEG_CODES:
            return f"<seg{token_id - vocabulary.seg_start:03d}>"
        if token_id in vocabulary.end_ids:
            return "<eos>"
        if not 0 <= token_id < vocabulary.size:
            return ""
        text = self._decode([token_id])
        return text if any(stop in text for stop in ";\r\n") else None

    def _add_words(self, words: list[tuple[int, int]]) -> None:
        if not words:
            return
        whole = self._decode([token_id for _, token_id in words])
        singles = [self._decode([token_id]) for _, token_id in words]
        if "".join(singles) == whole:
            for (index, _), text in zip(words, singles, strict=True):
                self._add(text, index, index + 1)
        else:  # letters that several tokens share (UTF-8 bytes): one piece
            self._add(whole, words[0][0], words[-1][0] + 1)

    def _add(self, text: str, first_id: int, stop_id: int) -> None:
        if text:
            self._pieces.append(text)
            self._starts.append(self._length)
            self._spans.append((first_id, stop_id))
            self._length += len(text)

    def _decode(self, ids: list[int]) -> str:
        return self._vocabulary.decode(ids).replace("<", _SPELLED_OUT)
