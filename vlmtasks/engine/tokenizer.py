"""Text to ids and back, with the vocabulary that PaliGemma adds to Gemma's.

The file is `tokenizer.json`; what the vocabulary must hold: <pad>, <eos>, <bos>, a newline token,
<loc0000>…<loc1023> and <seg000>…<seg127>, each run with consecutive ids. Nothing else is assumed,
so Gemma's 257,153 ids and a small vocabulary of one's own both work.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer as HuggingFaceTokenizer

from vlmtasks.errors import CheckpointError, MissingFileError
from vlmtasks.lfs import pointer_hint

LOC_TOKENS = tuple(f"<loc{index:04d}>" for index in range(1024))
SEG_TOKENS = tuple(f"<seg{index:03d}>" for index in range(128))
IMAGE_TOKEN = "<image>"
NEWLINE = "\n"
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class Tokenizer:
    """Ids and special ids of one vocabulary. Implements `vlmtasks.tokens.TokenVocabulary`.

    size: one more than the largest id; larger ids mean nothing and are never generated.
    image_id: the id of <image>, or None where the file has none (it is never part of a text).
    end_ids: <eos>, <bos>, <pad>; they end a text and are never part of it.
    """

    def __init__(self, tokenizer: HuggingFaceTokenizer, name: str = "tokenizer.json") -> None:
        # A file may ask for cut or padded texts; neither may happen to a prompt.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._name = name
        self.pad_id = self._id("<pad>")
        self.eos_id = self._id("<eos>")
        self.bos_id = self._id("<bos>")
        self.newline_id = self._newline()
        self.loc_start = self._run(LOC_TOKENS)
        self.seg_start = self._run(SEG_TOKENS)
        self._blank = self._blank_mark()
        self.image_id: int | None = tokenizer.token_to_id(IMAGE_TOKEN)
        added = tokenizer.get_added_tokens_decoder()
        self.size = max(tokenizer.get_vocab_size(), 1 + max(added, default=0))
        self.end_ids = frozenset((self.pad_id, self.eos_id, self.bos_id))
        special = {i for i, token in added.items() if token.special and not self._spoken(i)}
        self._silent = self.end_ids | special | {self.image_id}
        literals = [IMAGE_TOKEN, *(added[i].content for i in special if len(added[i].content) > 1)]
        self._literals_and_codes = re.compile(_inside(literals, "seg"))
        self._all_markers = re.compile(_inside(literals, "seg|loc"))

    @classmethod
    def from_file(cls, path: Path) -> "Tokenizer":
        """Reads a `tokenizer.json`.

        Raises MissingFileError where there is none and CheckpointError where it cannot be used.
        """
        if not path.is_file():
            hint = ""
            if path.with_name("tokenizer.model").is_file():
                hint = (
                    "; tokenizer.model alone is not enough, convert it once with "
                    "transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
                )
            raise MissingFileError(f"{path.parent} holds no tokenizer.json{hint}")
        try:
            content = path.read_text(encoding="utf-8-sig")  # Windows' editors add a mark
            tokenizer = HuggingFaceTokenizer.from_str(content)
            return cls(tokenizer, str(path))
        except CheckpointError:
            raise
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(
                f"{path} is not a readable tokenizer: {error}{pointer_hint(path)}"
            ) from error

    def encode(self, text: str, *, location_tokens: bool = False) -> list[int]:
        """Text → ids, without <bos>, <eos> or newline of our own.

        What looks like a token of the model in the text of a user (`<image>`, `<eos>`,
        `<loc0001>`, `<seg001>`) stays ordinary characters. With `location_tokens`, `<loc0000>` …
        `<loc1023>` become location tokens, as the prompt "caption <loc…>" needs them.
        """
        marker = self._literals_and_codes if location_tokens else self._all_markers
        ids: list[int] = []
        for piece in marker.split(text):
            ids += self._tokenizer.encode(piece, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int], /) -> str:
        """Ids → text; loc and seg tokens are kept, <image> and special tokens are dropped.

        Ids outside the vocabulary decode to nothing.
        """
        kept = [i for i in ids if not self.is_silent(i)]
        return self._tokenizer.decode(kept, skip_special_tokens=False)

    def ids_of(self, text: str, /) -> tuple[int, ...]:
        """The single tokens that are written as just this text: a piece, and a byte for ASCII."""
        names = [text.replace(" ", self._blank)]
        if len(text.encode("utf-8", "replace")) == 1:
            names.append(f"<0x{ord(text):02X}>")
        ids = (self._tokenizer.token_to_id(name) for name in names)
        return tuple(i for i in ids if i is not None and not self.is_silent(i))

    def is_silent(self, token_id: int) -> bool:
        """Whether this id is no text: <image>, <eos> and their like, or outside the vocabulary."""
        return not 0 <= token_id < self.size or token_id in self._silent

    def is_byte(self, token_id: int) -> bool:
        """Whether this id is one byte of a character that has no token of its own."""
        token = self._tokenizer.id_to_token(token_id) if 0 <= token_id < self.size else None
        return token is not None and _BYTE_TOKEN.fullmatch(token) is not None

    def _spoken(self, token_id: int) -> bool:
        """Whether this is a loc or seg token; some files call them special, yet they are text."""
        is_loc = 0 <= token_id - self.loc_start < len(LOC_TOKENS)
        return is_loc or 0 <= token_id - self.seg_start < len(SEG_TOKENS)

    def _id(self, token: str) -> int:
        found = self._tokenizer.token_to_id(token)
        if found is None:
            raise CheckpointError(
                f"{self._name} has no token {token}; PaliGemma needs <pad>, <eos>, <bos>, a "
                "newline, <loc0000>…<loc1023> and <seg000>…<seg127>"
                + (" (this looks like a bare Gemma tokenizer)" if token in LOC_TOKENS else "")
            )
        return found

    def _blank_mark(self) -> str:
        """What stands for a blank in the file: "▁" in Gemma's."""
        ids = self._tokenizer.encode(" ", add_special_tokens=False).ids
        return (self._tokenizer.id_to_token(ids[0]) if len(ids) == 1 else None) or " "

    def _run(self, tokens: Sequence[str]) -> int:
        start = self._id(tokens[0])
        for offset, token in enumerate(tokens):
            if self._id(token) != start + offset:
                raise CheckpointError(
                    f"{self._name}: {token} has id {self._id(token)}, expected {start + offset}; "
                    f"the ids of {tokens[0]}…{tokens[-1]} must be consecutive"
                )
        return start

    def _newline(self) -> int:
        ids = self._tokenizer.encode(NEWLINE, add_special_tokens=False).ids
        if len(ids) != 1:
            raise CheckpointError(
                f"{self._name} encodes a newline as {len(ids)} ids; PaliGemma ends each prompt "
                "with one newline token"
            )
        return ids[0]


def _inside(literals: Sequence[str], kinds: str) -> str:
    """A pattern of the empty place behind the first character of each marker.

    Text that is cut there holds no marker any more, whatever the tokenizer does with markers.
    """
    places = {f"(?<={re.escape(token[0])})(?={re.escape(token[1:])})" for token in literals}
    return "|".join([*sorted(places), rf"(?<=<)(?=(?:{kinds})\d+>)"])
