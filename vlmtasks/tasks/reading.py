"""What the scores and boxes of a result are made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from vlmtasks.choices import check_choice
from vlmtasks.generation import Generation
from vlmtasks.tasks.calibration import Calibration
from vlmtasks.tasks.scores import DEFAULT_SCORE, Score, begin_probability, check_score, record_score
from vlmtasks.tokens import ParsedObject, TokenVocabulary

Boxes = Literal["top", "expected"]
BOXES: tuple[Boxes, ...] = get_args(Boxes)


@dataclass(frozen=True)
class Reading:
    """score: see `vlmtasks.tasks.scores`.

    boxes: "top", the likeliest bins; "expected", see `vlmtasks.tasks.expected_boxes`, which needs a
        generation with `top_logprobs`.
    stop_ids: what ends an answer. When given, a score also counts how sure the model was that
        there is one more object; for answers that were kept from ending.
    calibration: turns scores into probabilities.
    """

    score: Score = DEFAULT_SCORE
    boxes: Boxes = "top"
    stop_ids: frozenset[int] | None = None
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        check_score(self.score)
        check_choice(self.boxes, BOXES, "boxes")

    def scores(
        self, generation: Generation, records: Sequence[ParsedObject], vocabulary: TokenVocabulary
    ) -> list[float]:
        """The score of each good record; `records` are all that were parsed, in order."""
        scores = []
        previous_stop = 0
        for record in records:
            if record.problem is None:
                score = record_score(generation, record, vocabulary, self.score)
                if self.stop_ids is not None:
                    start = record.span[0]
                    score *= begin_probability(generation, previous_stop, start, self.stop_ids)
                scores.append(self.calibration(score) if self.calibration else score)
            previous_stop = record.span[1]
        return scores
