"""A run with a stub model, for test_evaluation_run.py to kill: python killed_run.py OUT PAUSE."""

import sys
import time

from vlmtasks.evaluation.run import run_predictions

ITEMS = list(range(40))
BATCH = 3
asked: list[int] = []


def predict(batch: list[int]) -> list[dict[str, object]]:
    time.sleep(float(sys.argv[2]))
    with open(sys.argv[1] + ".asked", "a", encoding="utf-8") as file:
        file.writelines(f"{item}\n" for item in batch)
    return [{"text": "é" * 2000, "score": item / 7, "box": (item, 1.5)} for item in batch]


if __name__ == "__main__":
    run_predictions(
        sys.argv[1],
        ITEMS,
        predict,
        item_id=lambda item: item * 10,
        head={"protocol": "stub"},
        batch_size=BATCH,
    )
