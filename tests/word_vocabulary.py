"""A vocabulary of single words for tests that parse token ids."""

from collections.abc import Sequence

_SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>"]
_LOCS = [f"<loc{number:04d}>" for number in range(1024)]
_SEGS = [f"<seg{number:03d}>" for number in range(128)]


class WordVocabulary:
    """Implements vlmtasks.tokens.TokenVocabulary: pad 0, eos 1, bos 2, unk 3, words, loc, seg.

    `\\xNN` as a word stands for one byte of UTF-8, which only makes sense together with others.
    """

    def __init__(self, *words: str) -> None:
        self.tokens: list[str | bytes] = [*_SPECIAL, "\n", " ;", *words, *_LOCS, *_SEGS]
        self.loc_start = self.tokens.index("<loc0000>", len(_SPECIAL) + 2 + len(words))
        self.seg_start = self.loc_start + 1024
        self.size = len(self.tokens)
        self.end_ids = frozenset((0, 1, 2))

    def decode(self, ids: Sequence[int], /) -> str:
        pieces = [self.tokens[index] for index in ids if index not in self.end_ids]
        return b"".join(
            bytes.fromhex(piece[2:]) if piece.startswith("\\x") else piece.encode()
            for piece in pieces
        ).decode("utf-8", errors="replace")

    def ids(self, *tokens: str) -> list[int]:
        """Ids of tokens; one of the words wins over a loc token spelled alike."""
        return [self.tokens.index(token) for token in tokens]

    def locs(self, *bins: int) -> list[int]:
        return [self.loc_start + value for value in bins]

    def segs(self, *codes: int) -> list[int]:
        return [self.seg_start + code for code in codes]
