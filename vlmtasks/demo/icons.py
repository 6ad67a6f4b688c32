"""Icons as further drawings to train on: many more shapes of each class than emoji have.

icons.json names those that clearly show one object of a class, with their packs' versions and
licences; it was checked by eye. Most icons are of one ink on nothing: here they get a second tone
inside, so that they look like drawings and hide what lies behind them.
"""

import hashlib
import json
import tarfile
from functools import cache
from importlib.resources import files
from pathlib import Path

import cv2
import numpy as np

from vlmtasks.demo.assets import (
    Drawing,
    cache_folder,
    fetch_pack,
    find_icon,
    render_svg,
    store_drawings,
)
from vlmtasks.demo.classes import COLORS
from vlmtasks.demo.recolor import draw_paint

_RENDERING = 1  # part of the cache's file name: raise it when the pixels change
_INK = "#ff00ff"  # stands for "currentColor" until the paint is known
_SEE_THROUGH = ("bicycle", "key")  # what lies behind them shows in their holes
_PAINTS = COLORS[:8]  # without black, white and grey


def icons_path() -> Path:
    """Where the rendered icons lie in the cache."""
    return cache_folder() / f"icons-{_RENDERING}.npz"


@cache
def load_icons() -> tuple[Drawing, ...]:
    """All chosen icons; the first call fetches their packs from npm and renders them."""
    packs = json.loads((files("vlmtasks.demo") / "icons.json").read_text())
    chosen = [
        (pack, label, name)
        for pack, content in packs.items()
        for label, names in content["names"].items()
        for name in names.split()
    ]
    path = icons_path()
    stored = dict(np.load(path)) if path.is_file() else {}
    if not {f"{pack}:{name}" for pack, _, name in chosen} <= stored.keys():
        stored = {}
        for pack, content in packs.items():
            own = [(label, name) for of, label, name in chosen if of == pack]
            stored |= _render_pack(pack, content["version"], own)
        store_drawings(path, stored)
    return tuple(
        Drawing(pack, name, label, stored[f"{pack}:{name}"]) for pack, label, name in chosen
    )


def _render_pack(pack: str, version: str, chosen: list[tuple[str, str]]) -> dict[str, np.ndarray]:
    with tarfile.open(fetch_pack(pack, version)) as tar:
        content = json.load(tar.extractfile("package/icons.json"))  # type: ignore[arg-type]
    rendered = {}
    for label, name in chosen:
        icon = find_icon(content, name)
        width, height = (icon.get(side, content.get(side, 16)) for side in ("width", "height"))
        has_one_ink = "currentColor" in icon["body"]
        rgba = render_svg(icon["body"].replace("currentColor", _INK), width, height)
        rng = np.random.default_rng(
            int(hashlib.sha1(f"{pack}:{name}".encode()).hexdigest()[:8], 16)
        )
        inside = np.zeros(rgba.shape[:2], np.float32) if label in _SEE_THROUGH else _inside(rgba)
        rendered[f"{pack}:{name}"] = (
            _two_tones(rng, rgba, inside) if has_one_ink else _backed(rgba, inside, (255, 255, 255))
        )
    return rendered


def _inside(rgba: np.ndarray) -> np.ndarray:
    """Opacity (H, W) of 0..1 that the ink lacks where it encloses nothing but itself."""
    ink = rgba[..., 3]
    around = cv2.copyMakeBorder(
        (ink < 100).astype(np.uint8), 1, 1, 1, 1, cv2.BORDER_CONSTANT, value=1
    )
    _, parts = cv2.connectedComponents(around, connectivity=4)
    outside = (parts == parts[0, 0])[1:-1, 1:-1]
    return np.where(outside, 0.0, 1.0 - ink / 255.0).astype(np.float32)


def _two_tones(rng: np.random.Generator, rgba: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """The larger of ink and inside gets a colour, the other one is dark or white."""
    paint = draw_paint(_PAINTS[rng.integers(len(_PAINTS))], rng)
    other = np.full(3, 255.0 if rng.random() < 0.5 else rng.uniform(15, 45))
    is_filled = inside.sum() > rgba[..., 3].sum() / 255
    inked = rgba.copy()
    inked[..., :3] = other if is_filled else paint
    return _backed(inked, inside, paint if is_filled else other)


def _backed(rgba: np.ndarray, inside: np.ndarray, tone: np.ndarray | tuple) -> np.ndarray:
    """Straight (H, W, 4) uint8 with `tone` behind it where `inside` says so."""
    alpha = rgba[..., 3:].astype(np.float32) / 255
    back = inside[..., None]
    total = alpha + back
    mixed = (rgba[..., :3] * alpha + np.asarray(tone) * back) / np.maximum(total, 1e-3)
    return np.dstack([mixed, 255 * total.clip(0, 1)]).clip(0, 255).round().astype(np.uint8)
