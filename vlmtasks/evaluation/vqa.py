"""Short answers: VQA accuracy, exact match, ANLS, relaxed accuracy, POPE, counting.

Each function scores one benchmark by its own rules, taken from the evaluators of big_vision and
the pages they cite. Scores are 0..1.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from vlmtasks.errors import InputError
from vlmtasks.evaluation.text_metrics import edit_distance

ANLS_THRESHOLD = 0.5  # DocVQA, ST-VQA, InfographicVQA
RELAXED_ERROR = 0.05  # ChartQA, end of section 5.1
NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
).split()


# --- VQA v2, TextVQA, OKVQA, VizWiz: https://visualqa.org/evaluation.html -------------------------


def vqa_accuracy(answer: str, truths: Sequence[str]) -> float:
    """VQA v2 accuracy of one answer against its (usually ten) human answers.

    An answer is right as soon as three people gave it: the mean, over leaving each person out, of
    min(1, people who agree / 3). Answers are normalised only where the people disagree, as in the
    official code. InputError: no truths.
    """
    _require(truths)
    people = [_straighten(truth) for truth in truths]
    given = _straighten(answer)
    if len(set(people)) > 1:
        given, people = normalise_answer(given), [normalise_answer(truth) for truth in people]
    agree = [person == given for person in people]
    total = sum(agree)
    return sum(min(1.0, (total - one) / 3) for one in agree) / len(people)


def normalise_answer(text: str) -> str:
    """VQA v2's normal form: no punctuation, numbers as digits, no articles, apostrophes put back.

    >>> normalise_answer("The dog doesnt see two, cats!")
    "dog doesn't see 2 cats"
    """
    # The official code asks of the whole text, once for each sign, whether that sign stands beside
    # a blank, and whether any comma anywhere stands between digits. Scores depend on it.
    joins = _DIGIT_COMMA.search(text) is not None
    cleaned = text
    for sign in _PUNCTUATION:
        glued = joins or f"{sign} " in text or f" {sign}" in text
        cleaned = cleaned.replace(sign, "" if glued else " ")
    words = _LONE_POINT.sub("", cleaned).lower().split()
    return " ".join(_WORDS.get(word, word) for word in words if word not in _ARTICLES)


def simple_vqa_accuracy(answer: str, truths: Sequence[str]) -> float:
    """min(1, people who agree / 3) without normalising or leaving out; one truth: exact match.

    As big_vision's `vqa.py` (OCR-VQA, A-OKVQA). InputError: no truths.
    """
    _require(truths)
    if len(truths) == 1:
        return float(answer == truths[0])
    return min(1.0, sum(answer == truth for truth in truths) / 3)


# --- documents and charts ------------------------------------------------------------------------


def anls(answer: str, truths: Sequence[str], *, threshold: float = ANLS_THRESHOLD) -> float:
    """Average normalised Levenshtein similarity of one answer: its best over the truths.

    1 - distance / longer length, or 0 where that distance is not below `threshold`. Lower-case both
    sides first for DocVQA and ST-VQA. InputError: no truths.
    """
    _require(truths)
    return max(_similarity(answer, truth, threshold) for truth in truths)


def relaxed_match(answer: str, truth: str, *, error: float = RELAXED_ERROR) -> bool:
    """ChartQA: numbers may be off by 5 % of the truth, anything else must be equal, case aside.

    "12%" counts as 0.12. A truth of 0, and numbers that are no plain number such as "1,000", must
    be equal as text.
    """
    answer, truth = answer.lower(), truth.lower()
    given, wanted = _number(answer), _number(truth)
    if given is not None and wanted:
        return abs(given - wanted) / abs(wanted) <= error
    return answer == truth


# --- yes and no, how many ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class YesNoScore:
    """POPE. `valid` is the share of answers that are yes or no; "yes" is the positive class."""

    accuracy: float
    valid: float
    precision: float | None
    recall: float | None
    f1: float | None
    yes_ratio: float


def pope(answers: Sequence[str], truths: Sequence[str]) -> YesNoScore:
    """Score yes/no answers: equal to the truth after lower-casing, nothing else.

    InputError: lists of unlike length, empty lists, a truth that is neither "yes" nor "no".
    """
    _require_pairs(answers, truths)
    wrong = sorted({truth for truth in truths if truth not in ("yes", "no")})
    if wrong:
        raise InputError(f"truths hold {wrong[0]!r}; a truth of POPE is 'yes' or 'no'")
    given = [answer.lower() for answer in answers]
    pairs = list(zip(given, truths, strict=True))
    true_yes = sum(pair == ("yes", "yes") for pair in pairs)
    said_yes, are_yes = given.count("yes"), list(truths).count("yes")
    return YesNoScore(
        accuracy=sum(answer == truth for answer, truth in pairs) / len(pairs),
        valid=sum(answer in ("yes", "no") for answer in given) / len(pairs),
        precision=true_yes / said_yes if said_yes else None,
        recall=true_yes / are_yes if are_yes else None,
        f1=2 * true_yes / (said_yes + are_yes) if said_yes + are_yes else None,
        yes_ratio=said_yes / len(pairs),
    )


@dataclass(frozen=True, slots=True)
class CountScore:
    """accuracy: exact, of all. within_one, mean_error: of those answers that are whole numbers."""

    accuracy: float
    valid: float
    within_one: float | None
    mean_error: float | None
    accuracy_by_count: dict[int, float]


def counting(answers: Sequence[str], truths: Sequence[int]) -> CountScore:
    """Score "how many" answers; words up to twenty count as digits, "none" as 0 (TallyQA).

    InputError: lists of unlike length, or empty ones.
    """
    _require_pairs(answers, truths)
    given = [as_count(answer) for answer in answers]
    pairs = list(zip(given, truths, strict=True))
    errors = [abs(count - truth) for count, truth in pairs if count is not None]
    by_count: dict[int, list[bool]] = {}
    for count, truth in pairs:
        by_count.setdefault(truth, []).append(count == truth)
    return CountScore(
        accuracy=sum(count == truth for count, truth in pairs) / len(pairs),
        valid=len(errors) / len(pairs),
        within_one=sum(error <= 1 for error in errors) / len(errors) if errors else None,
        mean_error=sum(errors) / len(errors) if errors else None,
        accuracy_by_count={key: sum(right) / len(right) for key, right in sorted(by_count.items())},
    )


def as_count(answer: str) -> int | None:
    """The whole number that an answer is, in digits or an English word; None for anything else."""
    text = answer.strip().lower()
    if text == "none":
        return 0
    if text in NUMBER_WORDS:
        return NUMBER_WORDS.index(text)
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


# --- tables and helpers --------------------------------------------------------------------------

_ARTICLES = frozenset(("a", "an", "the"))
_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_DIGIT_COMMA = re.compile(r"\d,\d")
_LONE_POINT = re.compile(r"\.(?!\d)")  # a full stop, but not a decimal point

# The words whose apostrophes are put back. Each is looked for with one of its apostrophes missing.
_CONTRACTIONS = """
ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't
haven't he'd he'd've he's how'd how'll how's isn't it'd it'd've it'll ma'am might've mightn't
mightn't've must've mustn't needn't not've o'clock oughtn't 'ow's'at shan't she'd've should've
shouldn't shouldn't've somebody'd've somebody'll somebody's someone'd someone'd've someone'll
someone's something'd something'd've something'll that's there'd there'd've there're there's they'd
they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's what've
when's where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't
would've wouldn't wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll you're you've
""".split()


def _spellings() -> dict[str, str]:
    table = {"none": "0", "somebody'd": "somebodyd"}  # the second is the official list's own slip
    table |= {word: str(number) for number, word in enumerate(NUMBER_WORDS[:11])}
    for word in _CONTRACTIONS:
        for place, letter in enumerate(word):
            if letter == "'":
                table[word[:place] + word[place + 1 :]] = word
    return table


_WORDS = _spellings()


def _straighten(text: str) -> str:
    return text.replace("\n", " ").replace("\t", " ").strip()


def _similarity(answer: str, truth: str, threshold: float) -> float:
    if not truth:
        return float(not answer)
    distance = edit_distance(truth, answer) / max(len(truth), len(answer))
    return 1 - distance if distance < threshold else 0.0


def _number(text: str) -> float | None:
    """What `float` reads, percents as fractions; but "nan", "inf" and "1_000" are no numbers."""
    digits, percent = (text.rstrip("%"), True) if text.endswith("%") else (text, False)
    try:
        value = float(digits)
    except ValueError:
        return None
    if "_" in digits or not math.isfinite(value):
        return None
    return value / 100 if percent else value


def _require(truths: Sequence[str]) -> None:
    if isinstance(truths, str) or not truths:
        raise InputError(f"truths is {truths!r}; it must be a list of at least one answer")


def _require_pairs(answers: Sequence[str], truths: Sequence[object]) -> None:
    if not answers or len(answers) != len(truths):
        raise InputError(
            f"{len(answers)} answers and {len(truths)} truths were given; there must be one answer "
            "for each truth and at least one"
        )
