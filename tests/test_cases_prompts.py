"""The reported problems of prompts (T…, S03) that the prompt functions decide, one line each.

What the tokenizer and the engine decide (<bos> and the newline as ids, context length, padding) is
tested where they are.
"""

import numpy as np
import pytest

from vlmtasks import prompts
from vlmtasks.errors import PromptError

CASES = [
    ("T01-plain", prompts.free_text, "caption en", "caption en"),
    ("T01-newline", prompts.free_text, "caption en\n", "caption en"),
    ("T01-crlf", prompts.free_text, "caption en\r\n", "caption en"),
    ("T01-many", prompts.free_text, "caption en\n\r\n \n", "caption en"),
    ("T01-inner-kept", prompts.free_text, "Question: a\r\nOptions: b\r", "Question: a\nOptions: b"),
    ("T03-bos-first", prompts.free_text, "<bos>detect cat", "detect cat"),
    ("T05-image-first", prompts.free_text, "<image>caption en", "caption en"),
    ("T05-images-first", prompts.free_text, " <image> <image><bos>caption en\n", "caption en"),
    ("T05-image-inside", prompts.free_text, "what does <image> mean?", "what does <image> mean?"),
    ("T05-answer", prompts.answer, "<image> what is this?", "answer en <image> what is this?"),
    ("T05-loc", prompts.answer, "what is <loc0001>?", "answer en what is <loc0001>?"),
    ("T05-eos", prompts.answer, "say <eos>", "answer en say <eos>"),
    ("T09-empty", prompts.free_text, "", ""),
    ("T09-only-image", prompts.free_text, "<image>\n", ""),
    ("T11-two", prompts.detect, ["cat", "dog"], "detect cat ; dog"),
    ("T11-one", prompts.detect, ["cat"], "detect cat"),
    ("T11-twice", prompts.detect, ["cat", "cat"], "detect cat"),
    ("T11-segment-two", prompts.segment, ["cat", "dog"], "segment cat ; dog"),
    ("T11-segment-one", prompts.segment, "cat", "segment cat"),
    ("T11-order", prompts.detect, ["dog", "cat", "dog", "ant"], "detect dog ; cat ; ant"),
    ("T11-no-blanks", prompts.detect, "cat;dog", "detect cat ; dog"),
    ("T11-joined", prompts.detect, "cat ; dog", "detect cat ; dog"),
    ("T11-trailing", prompts.detect, "cat ; dog ; ", "detect cat ; dog"),
    ("T11-trailing-newline", prompts.detect, "cat\n", "detect cat"),
    ("T11-comma-stays", prompts.detect, "the dog, left", "detect the dog, left"),
    ("T11-blanks", prompts.detect, ["  stop \t sign "], "detect stop sign"),
    ("T11-case-kept", prompts.detect, ["Stop Sign"], "detect Stop Sign"),
    ("T11-case-twice", prompts.detect, ["Cat", "cat", "CAT"], "detect Cat"),
    ("T11-tuple", prompts.detect, ("cat", "dog"), "detect cat ; dog"),
    ("T11-dict-keys", prompts.detect, {"cat": 1, "dog": 2}, "detect cat ; dog"),
    ("T11-generator", prompts.detect, (name for name in ("cat", "dog")), "detect cat ; dog"),
    ("T11-unicode", prompts.detect, ["猫", "Straße"], "detect 猫 ; Straße"),
    ("T11-angle", prompts.detect, ["<3 sign"], "detect <3 sign"),
    ("T11-array", prompts.detect, np.array(["cat", "dog"]), "detect cat ; dog"),
    ("T11-byte-order-mark", prompts.detect, ["\ufeffcat", "dog"], "detect cat ; dog"),
    ("T11-zero-width", prompts.detect, "cat\u200b ; dog", "detect cat ; dog"),
    ("T11-zero-width-inside", prompts.detect, "👩\u200d🚀", "detect 👩\u200d🚀"),
    ("T11-line-separator", prompts.detect, ["stop\u2028sign"], "detect stop sign"),
    ("T11-wide-semicolon", prompts.detect, "猫；犬", "detect 猫；犬"),
    ("T11-dotless-i", prompts.detect, ["I", "ı", "i"], "detect I ; ı"),
    ("T01-inner-crlf", prompts.answer, "a\r\nb", "answer en a\nb"),
    ("T05-image-alone", prompts.answer, "<image>", "answer en <image>"),
    ("language-of-a-country", prompts.caption, "pt-BR", "caption pt-br"),
]


@pytest.mark.parametrize(
    ("function", "given", "prompt"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_case(function, given, prompt):
    assert function(given) == prompt


REFUSED = [
    ("S03-none", prompts.detect, None, "classes are None"),
    ("S03-empty-list", prompts.detect, [], "names nothing"),
    ("S03-empty", prompts.detect, "", "names nothing"),
    ("S03-blank", prompts.segment, "  ", "names nothing"),
    ("S03-semicolons", prompts.segment, " ; ;", "names nothing"),
    ("empty-name", prompts.detect, ["cat", ""], "which is empty"),
    ("blank-name", prompts.detect, ["cat", " "], "which is empty"),
    ("number", prompts.detect, 3, "must be a str or a list of str"),
    ("number-in-list", prompts.detect, ["cat", 3], "every class must be a str"),
    ("none-in-list", prompts.detect, [None], "every class must be a str"),
    ("bytes", prompts.detect, b"cat", "every class must be a str"),
    ("set", prompts.detect, {"cat", "dog"}, "in order"),
    ("semicolon-in-name", prompts.detect, ["cat;dog"], "has no ';'"),
    ("newline-in-name", prompts.detect, ["cat\ndog"], "no line end"),
    ("newline-in-str", prompts.detect, "cat\ndog", "no line end"),
    ("loc-in-name", prompts.detect, ["<loc0001>cat"], "no token"),
    ("seg-in-name", prompts.detect, "cat <seg001>", "no token"),
    ("eos-in-name", prompts.detect, ["cat<eos>"], "no token"),
    ("image-in-name", prompts.detect, ["<image>"], "no token"),
    ("no-question", prompts.answer, "", "says nothing"),
    ("blank-question", prompts.answer, " \n", "says nothing"),
    ("question-none", prompts.answer, None, "must be a str"),
    ("answer-number", prompts.question, 3, "must be a str"),
    ("prompt-none", prompts.free_text, None, "must be a str"),
    ("nested", prompts.detect, [["cat"], ["dog"]], "every class must be a str"),
    ("pad-in-name", prompts.detect, "<pad>", "no token"),
    ("half-a-letter", prompts.free_text, "caf\udce9", "is no letter"),
    ("half-a-letter-question", prompts.answer, "\ud83d?", "is no letter"),
    ("half-a-letter-class", prompts.detect, ["cat", "\ud83d"], "is no letter"),
]


@pytest.mark.parametrize(
    ("function", "given", "message"), [case[1:] for case in REFUSED], ids=[c[0] for c in REFUSED]
)
def test_refused(function, given, message):
    with pytest.raises(PromptError, match=message):
        function(given)
