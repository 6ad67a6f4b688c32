"""Caption scores: figures of COCO's own code, and the tokenizer against the package's wrapper."""

import shutil

import pytest

from vlmtasks.errors import InputError, MissingExtraError
from vlmtasks.evaluation.captions import score_captions, tokenize

REFERENCES = {
    "1": ["A cat sits on a mat.", "The cat is sitting on the mat, (really)"],
    "2": ["A red car drives down the street.", "a car - in the road"],
    "3": ["Two dogs play; with a ball!", "dogs playing"],
}
PREDICTIONS = {"1": "a cat on a mat", "2": "A red car in the street", "3": ""}


@pytest.fixture(scope="module", autouse=True)
def java() -> None:
    pytest.importorskip("pycocoevalcap.cider.cider", reason="pip install 'vlmtasks[captions]'")
    if shutil.which("java") is None:
        pytest.skip("the PTB tokenizer needs Java: apt-get install default-jre-headless")


def test_scores_are_those_of_the_package() -> None:
    scores = score_captions(REFERENCES, PREDICTIONS)
    assert scores.cider == pytest.approx(2.067274598685231)
    assert scores.bleu == pytest.approx((0.8337529, 0.7860698, 0.6044044, 7.78955e-05), rel=1e-5)
    assert scores.rouge_l == pytest.approx(0.5692538286086672)
    assert scores.cider_by_picture["3"] == 0.0
    assert scores.meteor is None


def test_tokenizer_equals_the_packages_wrapper() -> None:
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    wrapped = {key: [{"caption": text} for text in texts] for key, texts in REFERENCES.items()}
    assert tokenize(REFERENCES) == PTBTokenizer().tokenize(wrapped)


def test_line_ends_and_accents_do_not_shift_captions() -> None:
    captions = {"1": ["one\ntwo\u2028three\x85four", "", "Café crème"], "2": ["last"]}
    assert tokenize(captions) == {"1": ["one two three four", "", "café crème"], "2": ["last"]}


def test_wrong_ids_are_refused() -> None:
    with pytest.raises(InputError, match=r"differ in 1 picture ids, such as '4'"):
        score_captions(REFERENCES, PREDICTIONS | {"4": "a"})
    with pytest.raises(InputError, match="no references"):
        score_captions({}, {})
    with pytest.raises(InputError, match="list of captions"):
        score_captions({"1": "a cat"}, {"1": "a"})


def test_missing_java_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(MissingExtraError, match="Java"):
        tokenize(REFERENCES)
