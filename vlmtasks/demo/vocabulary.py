"""The demo tokenizer as training sees it: where each kind of token lies."""

from dataclasses import dataclass

from vlmtasks.demo.classes import COLORS, LABELS
from vlmtasks.demo.lettering import DIGITS, LETTERS
from vlmtasks.demo.tokenizer import build_tokenizer

EOS_ID, BOS_ID = 1, 2


@dataclass(frozen=True)
class PromptIds:
    """One prompt with its answer: prefix is bos … newline, suffix is answer and eos."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    task: str


@dataclass
class DemoVocabulary:
    """size: rows of the embedding table; loc_start, seg_start: ids of `<loc0000>`, `<seg000>`.

    class_ids, color_ids: the tokens with a leading blank, as answers use them; char_ids: capitals
    and digits.
    """

    size: int
    loc_start: int
    seg_start: int
    newline: int
    class_ids: list[int]
    color_ids: list[int]
    char_ids: list[int]

    @classmethod
    def build(cls) -> "DemoVocabulary":
        tokenizer = build_tokenizer()

        def id_of(token: str) -> int:
            number = tokenizer.token_to_id(token)
            assert number is not None, token
            return number

        return cls(
            size=tokenizer.get_vocab_size(),
            loc_start=id_of("<loc0000>"),
            seg_start=id_of("<seg000>"),
            newline=id_of("\n"),
            class_ids=[id_of("▁" + label) for label in LABELS],
            color_ids=[id_of("▁" + color) for color in COLORS],
            char_ids=[id_of(char) for char in LETTERS + DIGITS],
        )
