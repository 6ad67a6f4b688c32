"""Captions: CIDEr, BLEU, ROUGE-L and METEOR, computed by pycocoevalcap as in COCO's own code.

Both sides go through Stanford's PTB tokenizer first, which lower-cases and drops punctuation. It is
a Java program inside that package, so Java must be installed. Published figures are CIDEr × 100.
CIDEr weighs words by how rare they are among the pictures scored together: of a single picture it
is 0, and figures of subsets are not comparable with those of the whole.
"""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmtasks.errors import InputError, MissingExtraError

# What COCO's tokenizer step throws away after Stanford's program has split the words.
_DROPPED = frozenset("'' ' `` ` -LRB- -RRB- -LCB- -RCB- . ? ! , : - -- ... ;".split())


@dataclass(frozen=True, slots=True)
class CaptionScores:
    """Means over all pictures; `cider_by_picture` for those who look at single ones."""

    cider: float
    bleu: tuple[float, float, float, float]
    rouge_l: float
    meteor: float | None
    cider_by_picture: dict[str, float]


def score_captions(
    references: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    *,
    meteor: bool = False,
) -> CaptionScores:
    """Score one caption a picture against its reference captions.

    references, predictions: by the picture's id; both hold the same ids.
    meteor: also run METEOR, a second Java program, about a second for 100 pictures.

    InputError: different ids, no ids, a picture without references.
    MissingExtraError: pycocoevalcap or Java is not installed.
    """
    _check(references, predictions)
    try:
        from pycocoevalcap.bleu.bleu import Bleu
        from pycocoevalcap.cider.cider import Cider
        from pycocoevalcap.rouge.rouge import Rouge
    except ImportError:
        raise MissingExtraError("pycocoevalcap", "captions") from None
    ids = list(references)
    wanted = tokenize({key: references[key] for key in ids})
    given = tokenize({key: [predictions[key]] for key in ids})
    cider, ciders = Cider().compute_score(wanted, given)
    bleu, _ = Bleu(4).compute_score(wanted, given, verbose=0)
    rouge, _ = Rouge().compute_score(wanted, given)
    return CaptionScores(
        cider=float(cider),
        bleu=(float(bleu[0]), float(bleu[1]), float(bleu[2]), float(bleu[3])),
        rouge_l=float(rouge),
        meteor=_meteor(wanted, given) if meteor else None,
        cider_by_picture={key: float(value) for key, value in zip(ids, ciders, strict=True)},
    )


def tokenize(captions: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Lower-case words without punctuation, a blank between them, by Stanford's PTB tokenizer.

    The package's own wrapper writes a temporary file into its folder, which fails where that folder
    is read-only, and decodes as the locale says; this one uses pipes and UTF-8.
    """
    lines = [" ".join(text.split()) for texts in captions.values() for text in texts]
    words = iter(_run_stanford(lines))
    return {
        key: [
            " ".join(word for word in next(words).split(" ") if word not in _DROPPED) for _ in texts
        ]
        for key, texts in captions.items()
    }


def _run_stanford(lines: list[str]) -> list[str]:
    java = shutil.which("java")
    if java is None:
        raise MissingExtraError("Java (the program `java`), which caption scores need,", "captions")
    try:
        from pycocoevalcap.tokenizer import ptbtokenizer
    except ImportError:
        raise MissingExtraError("pycocoevalcap", "captions") from None
    jar = Path(ptbtokenizer.__file__).with_name(ptbtokenizer.STANFORD_CORENLP_3_4_1_JAR)
    command = [java, "-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer"]
    command += ["-preserveLines", "-lowerCase", "-encoding", "UTF-8"]
    text = "\n".join(lines).encode("utf-8", errors="replace")
    done = subprocess.run(command, input=text, capture_output=True, check=False)
    found = done.stdout.decode("utf-8").split("\n")
    if done.returncode or len(found) < len(lines):
        raise InputError(
            f"the PTB tokenizer returned {len(found)} of {len(lines)} captions and said: "
            f"{done.stderr.decode('utf-8', errors='replace')[-500:]!r}; check the Java installation"
        )
    return [line.rstrip() for line in found[: len(lines)]]


def _meteor(wanted: dict[str, list[str]], given: dict[str, list[str]]) -> float:
    from pycocoevalcap.meteor.meteor import Meteor

    program = Meteor()
    try:
        score, _ = program.compute_score(wanted, given)
        return float(score)
    finally:
        for pipe in (program.meteor_p.stdout, program.meteor_p.stderr):
            if pipe is not None:
                pipe.close()  # the package leaves these two open


def _check(references: Mapping[str, Sequence[str]], predictions: Mapping[str, str]) -> None:
    if not references:
        raise InputError("no references were given; give the captions of at least one picture")
    if unlike := sorted(map(str, references.keys() ^ predictions.keys())):
        raise InputError(
            f"references and predictions differ in {len(unlike)} picture ids, such as "
            f'{unlike[0]!r}; give one prediction for each picture, "" where there is none'
        )
    for key, texts in references.items():
        if isinstance(texts, str) or not texts:
            raise InputError(f"references[{key!r}] is {texts!r}; it must be a list of captions")
