"""Ask a model about many pictures, so that a kill at any moment costs at most one batch.

Predictions go to a JSON Lines file. Its first line is the head of the run: everything that the
predictions depend on. Every other line is the prediction for one item, in the order of the items.
A batch is written with one call and forced to the disk before the next one is asked. When the run
starts again it drops what was not finished (half a line, part of a batch) and goes on. Batches
are always cut at the same places, so the file ends up the same, byte for byte, however often the
run was killed.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from vlmtasks.datasets.json_files import to_json
from vlmtasks.errors import DatasetError, InputError

Item = TypeVar("Item")
Record = dict[str, Any]

try:
    import fcntl
except ImportError:  # Windows; there two runs in one folder are the user's own care
    fcntl = None  # type: ignore[assignment]


def run_predictions(
    path: str | os.PathLike[str],
    items: Sequence[Item],
    predict: Callable[[Sequence[Item]], Sequence[Mapping[str, Any]]],
    *,
    item_id: Callable[[Item], int | str],
    head: Mapping[str, Any],
    note: Mapping[str, Any] | None = None,
    batch_size: int,
    report: Callable[[int], object] = lambda _: None,
) -> tuple[dict[str, Any], list[Record]]:
    """Ask about those items that `path` holds no prediction for; return head and predictions.

    predict: one mapping for each item of a batch, in order; JSON must be able to hold it. The key
        "id" is added.
    item_id: an id of its own for each item.
    head: what the predictions depend on: protocol, checkpoint, data, versions.
    note: what may be another when the run goes on; the first start's is kept in the head.
    report: called with the number of items done, first with those found in the file.

    InputError: the file belongs to a run with another head, or another process writes to it.
    """
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; it must be at least 1")
    ids = [item_id(item) for item in items]
    whole_head = {**head, "batch_size": batch_size, "note": dict(note or {})}
    with _locked(Path(path)) as file:
        found_head, records = _resume(file, os.fspath(path), whole_head, ids, batch_size)
        report(len(records))
        for start in range(len(records), len(items), batch_size):
            batch = items[start : start + batch_size]
            answers = predict(batch)
            if len(answers) != len(batch):
                raise InputError(f"predict gave {len(answers)} answers for {len(batch)} items")
            fresh = [{"id": ids[start + place], **answer} for place, answer in enumerate(answers)]
            _append(file, fresh)
            records += json.loads(to_json(fresh))  # as they would be read back: tuples are lists
            report(len(records))
    return found_head, records


def read_predictions(path: str | os.PathLike[str]) -> tuple[dict[str, Any], list[Record]]:
    """The head and the finished predictions of a run, without touching the file.

    DatasetError: not a file of predictions.
    """
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise DatasetError(f"{os.fspath(path)!r} cannot be read: {error}") from None
    lines = list(_whole_lines(data, os.fspath(path), _GIVEN))
    if not lines:
        raise DatasetError(f"{os.fspath(path)!r} holds no prediction yet; run the evaluation first")
    return _head_of(lines[0][0], os.fspath(path), _GIVEN), [value for value, _ in lines[1:]]


# what to do about a file that was found in --out, and about one that was given to be scored
_FOUND = "delete the file, or choose another --out"
_GIVEN = (
    "give the predictions.jsonl of a run of `vlmtasks eval`, or a list of COCO results in a .json "
    "file, as `vlmtasks detect --format coco` writes it"
)


def _resume(
    file: BinaryIO, place: str, head: Mapping[str, Any], ids: Sequence[int | str], batch_size: int
) -> tuple[dict[str, Any], list[Record]]:
    """Bring the file to the end of its last whole batch; return its head and predictions."""
    lines = list(_whole_lines(file.read(), place, _FOUND))
    if not lines:
        file.truncate(0)
        _append(file, [{"run": head}])
        return json.loads(to_json(head)), []
    found_head = _head_of(lines[0][0], place, _FOUND)
    _check_head(found_head, head, place)
    records = [value for value, _ in lines[1 : len(ids) + 1]]
    kept = len(records) if len(records) == len(ids) else len(records) // batch_size * batch_size
    for number, (record, wanted) in enumerate(
        zip(records[:kept], ids[:kept], strict=True), start=2
    ):
        if record.get("id") != wanted:
            raise InputError(
                f"{place}, line {number}: holds the prediction for {record.get('id')!r}, but "
                f"{wanted!r} comes next in this data set; choose another --out"
            )
    if len(lines) - 1 <= len(ids):  # more predictions than items: this run has a lower limit
        file.truncate(lines[kept][1])
    return found_head, records[:kept]


def _whole_lines(data: bytes, place: str, advice: str) -> Iterator[tuple[Record, int]]:
    """(object, offset behind it) of every finished line; what follows the last "\\n" is dropped."""
    start = 0
    while (end := data.find(b"\n", start)) >= 0:
        try:
            value = json.loads(data[start:end])
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            line = data.count(b"\n", 0, start) + 1
            raise DatasetError(f"{place}, line {line}: is no prediction; {advice}")
        start = end + 1
        yield value, start


def _head_of(line: Record, place: str, advice: str) -> dict[str, Any]:
    head = line.get("run")
    if not isinstance(head, dict):
        raise DatasetError(f"{place}, line 1: is not the head of a run; {advice}")
    return head


def _check_head(found: Mapping[str, Any], wanted: Mapping[str, Any], place: str) -> None:
    wanted = json.loads(to_json(wanted))
    changes = [
        f"{key} was {to_json(found.get(key))} and is now {to_json(wanted.get(key))}"
        for key in sorted(found.keys() | wanted.keys())
        if key != "note" and found.get(key) != wanted.get(key)
    ]
    if changes:
        raise InputError(
            f"{place} belongs to another run: {'; '.join(changes)}; choose another --out, or "
            "delete the file to start anew"
        )


def _append(file: BinaryIO, records: Sequence[Mapping[str, Any]]) -> None:
    file.write("".join(to_json(record) + "\n" for record in records).encode("utf-8", "replace"))
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """The file, opened for reading and appending, for this process only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(
                    f"another process is writing to {os.fspath(path)!r}; wait for it, or choose "
                    "another --out"
                ) from None
        file.seek(0)
        yield file
