"""Large pictures in overlapping tiles, and one list of objects out of what was found in each.

An object on a seam is seen by several tiles, mostly by each in part. Two boxes are taken for the
same object when they have the same label, come from different tiles and agree in the part of the
picture that both tiles see. Of an object that some tile sees whole, that box and mask stay; of one
that no tile sees whole, the parts are joined. It gets the highest score of its parts.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vlmtasks.boxes import SizeWH, box_areas, box_iou, check_image_size
from vlmtasks.categories import normalize_name
from vlmtasks.errors import InputError
from vlmtasks.masks import Masks
from vlmtasks.results import Detections
from vlmtasks.rle import encode_rle
from vlmtasks.shorten import shorten

OVERLAP = 0.25
"""Of the side of a tile, what it shares with the next one at least."""

AGREEMENT = 0.4
"""Intersection over union of two boxes of one object, in the part that both tiles see."""

EDGE = 0.02
"""Of the side of a tile: a box that comes so close to a seam may go on behind it."""

MAX_TILES = 2000
"""Of one picture; each is asked about on its own."""

Tile = tuple[int, int, int, int]  # x0, y0, x1, y1 in whole pixels of the picture


def tile_boxes(image_size: SizeWH, tile: int, overlap: float = OVERLAP) -> list[Tile]:
    """The whole picture, then square tiles that cover it, row by row, evenly spread.

    tile: side in pixels; a picture that is no larger gives no tiles. The whole picture comes along
    because an object may be larger than a tile. InputError for a side below 2, an overlap
    outside of 0..0.9, or more than MAX_TILES tiles.
    """
    width, height = check_image_size(image_size)
    if isinstance(tile, bool) or not isinstance(tile, int) or tile < 2:
        raise InputError(
            f"tile is {shorten(tile)}; it must be the side of a tile in pixels, at least 2"
        )
    if not 0 <= overlap <= 0.9:
        raise InputError(
            f"the overlap of tiles is {shorten(overlap)}; it must be a share of 0..0.9"
        )
    whole = (0, 0, width, height)
    if max(width, height) <= tile:
        return [whole]
    step = max(1, round(tile * (1 - overlap)))
    count = math.ceil(width / step) * math.ceil(height / step)
    if count > MAX_TILES:
        raise InputError(
            f"tile is {tile}, which cuts a picture of {width}×{height} pixels into about {count} "
            f"tiles; choose a side that gives {MAX_TILES} at most"
        )
    return [
        whole,
        *(
            (left, top, min(left + tile, width), min(top + tile, height))
            for top in _starts(height, tile, overlap)
            for left in _starts(width, tile, overlap)
        ),
    ]


def merge_tiles(
    tiles: Sequence[Tile], found: Sequence[Detections], image_size: SizeWH
) -> Detections:
    """The objects of the whole picture.

    found: of each tile what was found in it, in its own pixels. The objects come in the order of
    the tiles; `text` holds the answers line by line, and `dropped` and `removed` those of all.
    """
    if len(tiles) != len(found) or not tiles:
        raise InputError(f"{len(found)} results for {len(tiles)} tiles; give one for each")
    pairs = zip(tiles, found, strict=True)
    pool = Detections.concatenated([_moved(one, tile[:2], image_size) for tile, one in pairs])
    tile_of = np.repeat(np.arange(len(tiles)), [len(one) for one in found])
    groups = _groups(pool, np.array(tiles, np.float64)[tile_of], tile_of)
    boxes = pool.boxes_xyxy.copy()
    scores = pool.scores.copy()
    masks: list[Masks] = []
    chosen = []
    for group in groups:
        keep, *parts = _best_view(group, pool, tiles, tile_of, image_size)
        chosen.append(keep)
        scores[keep] = pool.scores[group].max()
        members = [keep, *parts]
        boxes[keep, :2] = pool.boxes_xyxy[members, :2].min(axis=0)
        boxes[keep, 2:] = pool.boxes_xyxy[members, 2:].max(axis=0)
        if pool.masks is not None:
            masks.append(_union(pool.masks, members))
    merged = replace(pool, boxes_xyxy=boxes, scores=scores)[chosen]
    return merged if pool.masks is None else replace(merged, masks=Masks.joined(masks, image_size))


def _starts(length: int, tile: int, overlap: float) -> list[int]:
    """First pixels of tiles that cover a side evenly."""
    if length <= tile:
        return [0]
    count = 1 + math.ceil((length - tile) / max(1, round(tile * (1 - overlap))))
    return [round(start) for start in np.linspace(0, length - tile, count)]


def _moved(found: Detections, offset_xy: tuple[int, int], image_size: SizeWH) -> Detections:
    """What was found in a tile, in pixels of the whole picture."""
    left, top = offset_xy
    gone = [
        replace(one, box_xyxy=tuple(np.add(one.box_xyxy, [left, top] * 2).tolist()))
        for one in found.removed
    ]
    masks = None if found.masks is None else found.masks.moved(offset_xy, image_size)
    return replace(
        found,
        boxes_xyxy=found.boxes_xyxy + np.array([left, top] * 2, np.float32),
        image_size=image_size,
        masks=masks,
        removed=tuple(gone),
    )


def _groups(
    pool: Detections, views: NDArray[np.float64], tile_of: NDArray[np.int64]
) -> list[list[int]]:
    """The indices of each object, every tile at most once; objects by their first index.

    views: (N, 4) the tile of each box. Pairs that agree most are joined first.
    """
    group_of = {index: [index] for index in range(len(pool))}
    for first, second in _agreeing_pairs(pool, views, tile_of):
        one, other = group_of[first], group_of[second]
        if set(tile_of[one]).isdisjoint(tile_of[other]):
            one += other
            group_of.update(dict.fromkeys(other, one))
    return [sorted(group) for index, group in group_of.items() if index == min(group)]


def _agreeing_pairs(
    pool: Detections, views: NDArray[np.float64], tile_of: NDArray[np.int64]
) -> list[tuple[int, int]]:
    boxes = pool.boxes_xyxy.astype(np.float64)
    names = np.array([normalize_name(label) for label in pool.labels])
    pairs = []
    for index in range(len(pool) - 1):
        others = np.arange(index + 1, len(pool))
        others = others[(names[others] == names[index]) & (tile_of[others] != tile_of[index])]
        if not len(others):
            continue
        low = np.maximum(views[others, :2], views[index, :2])
        high = np.minimum(views[others, 2:], views[index, 2:])
        mine = _clipped(boxes[[index]], low, high)
        theirs = _clipped(boxes[others], low, high)
        for other, overlap in zip(others, map(_overlap, mine, theirs), strict=True):
            if overlap >= AGREEMENT:
                pairs.append((overlap, index, int(other)))
    return [(first, second) for _, first, second in sorted(pairs, key=lambda p: (-p[0], *p[1:]))]


def _clipped(
    boxes: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> NDArray[np.float64]:
    return np.concatenate(
        [np.clip(boxes[:, :2], low, high), np.clip(boxes[:, 2:], low, high)], axis=1
    )


def _overlap(a_xyxy: NDArray[np.float64], b_xyxy: NDArray[np.float64]) -> float:
    return float(box_iou([a_xyxy], [b_xyxy])[0, 0])


def _best_view(
    group: list[int],
    pool: Detections,
    tiles: Sequence[Tile],
    tile_of: NDArray[np.int64],
    image_size: SizeWH,
) -> list[int]:
    """The index that shows the object whole, in the smallest tile; or all parts, the best first."""
    whole = [i for i in group if not _is_cut(pool.boxes_xyxy[i], tiles[tile_of[i]], image_size)]
    by_score = sorted(group, key=lambda i: -pool.scores[i])
    if not whole:
        return by_score
    areas = box_areas(np.array(tiles, np.float64)[tile_of[whole]])
    smallest = [i for i, area in zip(whole, areas, strict=True) if area == areas.min()]
    return [next(i for i in by_score if i in smallest)]


def _is_cut(box_xyxy: NDArray[np.float32], tile: Tile, image_size: SizeWH) -> bool:
    """Whether the box comes to an edge of the tile behind which the picture goes on."""
    x0, y0, x1, y1 = tile
    width, height = image_size
    margin_x, margin_y = EDGE * (x1 - x0), EDGE * (y1 - y0)
    return bool(
        (x0 > 0 and box_xyxy[0] < x0 + margin_x)
        or (y0 > 0 and box_xyxy[1] < y0 + margin_y)
        or (x1 < width and box_xyxy[2] > x1 - margin_x)
        or (y1 < height and box_xyxy[3] > y1 - margin_y)
    )


def _union(masks: Masks, members: list[int]) -> Masks:
    """One mask out of those of the members; that of a single one stays as it is."""
    members = [index for index in members if masks.has_mask(index)] or members[:1]
    if len(members) == 1:
        return masks[members]
    return Masks.from_rles([encode_rle(masks[members].dense().any(axis=0))], masks.image_size)
