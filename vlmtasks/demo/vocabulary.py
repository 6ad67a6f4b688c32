"""The demo tokenizer as training sees it: where each kind of token lies."""

from dataclasses import dataclass

from vlmtasks.demo.classes import COLORS, LABELS, plural
from vlmtasks.demo.lettering import DIGITS, LETTERS
from vlmtasks.demo.tokenizer import build_tokenizer

EOS_ID, BOS_ID = 1, 2


@dataclass(frozen=True)
class PromptIds:
    """One prompt with its answer: prefix is bos … newline, suffix is answer and eos.

    points: the patches that each token of the suffix is about (see pointers.py), empty for none.
    given: what training feeds in place of the suffix: its boxes are a little off, as in use.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    task: str
    points: tuple[tuple[int, ...], ...] = ()
    given: tuple[int, ...] = ()

    @property
    def fed(self) -> tuple[int, ...]:
        return self.prefix + (self.given or self.suffix)


@dataclass
class DemoVocabulary:
    """size: rows of the embedding table; loc_start, seg_start: ids of `<loc0000>`, `<seg000>`.

    class_ids, color_ids: the tokens with a leading blank, as answers use them; char_ids: capitals
    and digits; digit_ids: of 0 … 9. class_of: class index of every token that names one, plurals
    included; char_index: place in char_ids; joints: what stands between two phrases of a caption.
    """

    size: int
    loc_start: int
    seg_start: int
    newline: int
    class_ids: list[int]
    color_ids: list[int]
    char_ids: list[int]
    digit_ids: list[int]
    class_of: dict[int, int]
    char_index: dict[int, int]
    joints: frozenset[int]

    @classmethod
    def build(cls) -> "DemoVocabulary":
        tokenizer = build_tokenizer()

        def id_of(token: str) -> int:
            number = tokenizer.token_to_id(token)
            assert number is not None, token
            return number

        forms = [
            (form, index)
            for index, label in enumerate(LABELS)
            for word in (label, plural(label))
            for form in (word, "▁" + word)
        ]
        char_ids = [id_of(char) for char in LETTERS + DIGITS]
        return cls(
            size=tokenizer.get_vocab_size(),
            loc_start=id_of("<loc0000>"),
            seg_start=id_of("<seg000>"),
            newline=id_of("\n"),
            class_ids=[id_of("▁" + label) for label in LABELS],
            color_ids=[id_of("▁" + color) for color in COLORS],
            char_ids=char_ids,
            digit_ids=[id_of(digit) for digit in DIGITS],
            class_of={id_of(form): index for form, index in forms},
            char_index={token: index for index, token in enumerate(char_ids)},
            joints=frozenset(map(id_of, (",", "▁and"))),
        )
