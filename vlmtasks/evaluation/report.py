"""One self-contained HTML page about a run: figures, curves, classes, scores, mistakes, pictures.

The page needs no network and runs no script; its content security policy forbids both. It looks
light or dark as the reader's system does, and can be printed.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmtasks.datasets.json_files import to_json, write_text
from vlmtasks.evaluation.coco_ap import CocoScores
from vlmtasks.evaluation.matching import calibration_error, match, reliability
from vlmtasks.evaluation.report_charts import (
    confusion_chart,
    precision_recall_chart,
    reliability_chart,
)
from vlmtasks.evaluation.report_gallery import Picture, choose, figure

MISSED, INVENTED, OTHER = "(missed)", "(nothing)", "(other)"
_MOST_CONFUSED = 24  # classes in the confusion matrix; the rest are summed up
_ROW_PICTURES = 6  # in a row of the gallery

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Report:
    """What the page tells.

    scores: those of boxes and, where masks were asked for, of masks, in the order to show.
    notes: plain sentences that a reader must know: unknown labels, cut answers, failed pictures.
    stamp: see `stamp.make_stamp`.
    """

    title: str
    scores: Sequence[CocoScores]
    pictures: Sequence[Picture]
    stamp: Mapping[str, Any]
    notes: Sequence[str] = field(default=())


def write_report(path: str | os.PathLike[str], report: Report) -> None:
    """Write the page as one UTF-8 file."""
    write_text(Path(path), render(report))


def render(report: Report) -> str:
    """The page as text."""
    style = resources.files("vlmtasks.evaluation").joinpath("report.css").read_text("utf-8")
    body = "".join(
        [
            _head(report),
            _curves(report),
            _gallery(report.pictures),
            _confusion(report.pictures),
            _classes(report.scores),
            _stamp(report.stamp),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(report.title)}</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def confusion(
    pictures: Sequence[Picture],
) -> tuple[list[str], list[str], NDArray[np.int64]]:
    """(true classes, predicted classes, counts) of pairs that overlap by 0.5, whatever their class.

    The last row holds detections of nothing, the last column objects that were not found. Of more
    than 24 classes the rarest become "(other)".
    """
    pairs: list[tuple[str, str]] = []
    for picture in pictures:
        found = match(picture.truths, picture.found, same_class=False)
        pairs += [(picture.truths[t].label, picture.found[d].label) for d, t in found.pairs]
        pairs += [(picture.truths[t].label, MISSED) for t in found.missed]
        pairs += [(INVENTED, picture.found[d].label) for d in found.wrong]
    names = _most_frequent(name for pair in pairs for name in pair)
    rows, columns = [*names, INVENTED], [*names, MISSED]
    counts = np.zeros((len(rows), len(columns)), np.int64)
    row_of = {name: place for place, name in enumerate(rows)}
    column_of = {name: place for place, name in enumerate(columns)}
    for true, said in pairs:
        row, column = row_of.get(true, row_of.get(OTHER)), column_of.get(said, column_of.get(OTHER))
        assert row is not None
        assert column is not None
        counts[row, column] += 1
    return rows, columns, counts


# --- the parts of the page -----------------------------------------------------------------------


def _head(report: Report) -> str:
    truths = sum(not truth.is_crowd for picture in report.pictures for truth in picture.truths)
    found = sum(len(picture.found) for picture in report.pictures)
    lead = f"{len(report.pictures)} pictures, {truths} objects, {found} detections."
    notes = "".join(f"<p class='note'>{escape(note)}</p>" for note in report.notes)
    return (
        f"<header><h1>{escape(report.title)}</h1><p class='lead'>{lead}</p></header>{notes}"
        f"{''.join(map(_tiles, report.scores))}"
    )


def _tiles(scores: CocoScores) -> str:
    kind = "box" if scores.kind == "bbox" else "mask"
    tiles = []
    for name in ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large"):
        words = f"{kind} {name.replace('_', ' ')}"
        style = ' class="main"' if name == "AP" else ""
        tiles.append(f"<li{style}><b>{_number(scores.stats[name])}</b><span>{words}</span></li>")
    return f'<ul class="tiles">{"".join(tiles)}</ul>'


def _curves(report: Report) -> str:
    scores = report.scores[0]
    kind = "boxes" if scores.kind == "bbox" else "masks"
    return (
        '<h2>How good, how sure</h2><div class="pair">'
        f"<div><h3>Precision and recall <span>of {kind}, mean of the classes</span></h3>"
        f"{precision_recall_chart(scores.precision)}</div>{_reliability(report)}</div>"
    )


def _reliability(report: Report) -> str:
    scored = [
        (thing.score, place in {detection for detection, _ in picture.matches.pairs})
        for picture in report.pictures
        for place, thing in enumerate(picture.found)
    ]
    bins = reliability(scored)
    error = calibration_error(bins)
    words = "" if error is None else f"calibration error {error:.3f}"
    return (
        f"<div><h3>Are the scores honest? <span>{words}</span></h3>{reliability_chart(bins)}"
        '<p class="note">A detection is right when it overlaps an object of its class by half. '
        "The darker a bar, the more detections it stands for.</p></div>"
    )


def _classes(scores: Sequence[CocoScores]) -> str:
    first = scores[0]
    heads = "".join(
        f"<th scope='col'>{'box' if one.kind == 'bbox' else 'mask'} {name}</th>"
        for one in scores
        for name in ("AP", "AP50")
    )
    rows = []
    order = sorted(
        first.classes.items(), key=lambda item: (item[1].ap is None, -(item[1].ap or 0), item[0])
    )
    for key, entry in order:
        if not entry.truths and not entry.detections:
            continue
        cells = "".join(
            f"<td>{_bar(one.classes[key].ap)}</td><td>{_number(one.classes[key].ap50)}</td>"
            for one in scores
        )
        rows.append(
            f"<tr><th scope='row'>{escape(entry.name)}</th>{cells}<td>{_number(entry.ar100)}</td>"
            f"<td>{entry.truths}</td><td>{entry.detections}</td></tr>"
        )
    return (
        "<h2>Classes</h2><div class='wide'><table><thead><tr><th scope='col'>class</th>"
        f"{heads}<th scope='col'>recall</th><th scope='col'>objects</th>"
        f"<th scope='col'>detections</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _confusion(pictures: Sequence[Picture]) -> str:
    rows, columns, counts = confusion(pictures)
    return (
        "<h2>What was taken for what</h2><p class='note'>Rows are what is there, columns what was "
        f"said, both overlapping by half. “{INVENTED}” are detections of nothing, “{MISSED}” "
        f"objects not found.</p>{confusion_chart(rows, columns, counts)}"
    )


def _gallery(pictures: Sequence[Picture]) -> str:
    parts = [
        "<h2>Pictures</h2><p>Objects are dashed: <span class='key truth'>found</span> or "
        "<span class='key missed'>missed</span>. Detections are solid: "
        "<span class='key found'>right</span> or <span class='key wrong'>wrong</span>.</p>"
        "<div>"
    ]
    for name, words in (("truth", "objects"), ("found", "detections"), ("labels", "labels")):
        parts.append(
            f'<input class="switch" type="checkbox" id="show-{name}" checked>'
            f'<label class="switch" for="show-{name}"> {words}</label>'
        )
    for heading, words, row in choose(pictures, _ROW_PICTURES):
        figures = "".join(map(figure, row)) or "<p class='note'>There is none.</p>"
        parts.append(f"<h3>{heading} <span>{words}</span></h3><div class='gallery'>{figures}</div>")
    return "".join(parts) + "</div>"


def _stamp(stamp: Mapping[str, Any]) -> str:
    entries = []
    for key, value in stamp.items():
        if isinstance(value, Mapping):
            words = "; ".join(f"{name}: {_plain(entry)}" for name, entry in value.items())
        else:
            words = _plain(value)
        shown = f"<code>{escape(words)}</code>" if key == "command" else escape(words)
        entries.append(f"<dt>{escape(key)}</dt><dd>{shown}</dd>")
    return f"<h2>How this was made</h2><div class='wide'><dl>{''.join(entries)}</dl></div>"


def _most_frequent(names: Iterable[str]) -> list[str]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    classes = [name for name in counts if name not in (MISSED, INVENTED)]
    kept = sorted(classes, key=lambda name: (-counts[name], name))
    if len(kept) <= _MOST_CONFUSED:
        return sorted(kept)
    return [*sorted(kept[: _MOST_CONFUSED - 1]), OTHER]


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:.1f}"


def _bar(value: float | None) -> str:
    if value is None:
        return "n/a"
    return f"<meter min='0' max='1' value='{value:.4f}'></meter>{_number(value)}"


def _plain(value: object) -> str:
    return value if isinstance(value, str) else to_json(value)
