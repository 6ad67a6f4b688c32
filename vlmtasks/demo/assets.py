"""Emoji drawings as pixels: npm packs of SVG, rendered once and cached.

    python -m vlmtasks.demo.assets        fetches and renders all of them, icons.py's too

The table below names the drawings that clearly show one object of a class; it was checked by eye.
The packs are `@iconify-json/<vendor>`; the cache folder is `VLMTASKS_CACHE` or ~/.cache/vlmtasks.
Licences: noto, noto-v1, fxemoji Apache-2.0; fluent-emoji, fluent-emoji-flat MIT; twemoji CC-BY-4.0.
"""

import json
import os
import subprocess
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import cv2
import numpy as np

from vlmtasks.demo.classes import LABELS
from vlmtasks.errors import MissingExtraError, MissingFileError

SIDE = 192
"""Side of a rendered drawing in pixels."""

PACKS = {
    "noto": "1.2.9",
    "noto-v1": "1.2.5",
    "fxemoji": "1.2.2",
    "fluent-emoji": "1.2.7",
    "fluent-emoji-flat": "1.2.6",
    "twemoji": "1.2.5",
}
"""Vendor → version of its npm pack."""

_RENDERING = 2  # part of the cache's file names: raise it when the pixels change

TRAIN_VENDORS = ("noto", "noto-v1", "fxemoji", "fluent-emoji", "fluent-emoji-flat")
TEST_VENDOR = "twemoji"

_NAMES = {
    "cat": "cat cat-face black-cat grinning-cat kissing-cat pouting-cat",
    "dog": "dog dog-face poodle guide-dog service-dog",
    "horse": "horse horse-face",
    "pig": "pig pig-face",
    "fish": "fish tropical-fish blowfish",
    "car": "automobile oncoming-automobile taxi oncoming-taxi sport-utility-vehicle racing-car "
    "police-car oncoming-police-car",
    "bus": "bus oncoming-bus trolleybus",
    "bicycle": "bicycle",
    "airplane": "airplane small-airplane airplane-departure airplane-arrival",
    "boat": "sailboat speedboat motor-boat canoe ferry ship passenger-ship",
    "apple": "red-apple green-apple",
    "banana": "banana",
    "pizza": "pizza",
    "cake": "birthday-cake shortcake cupcake",
    "cup": "teacup-without-handle hot-beverage cup-with-straw bubble-tea",
    "ball": "soccer-ball basketball baseball softball tennis volleyball american-football "
    "rugby-football",
    "umbrella": "umbrella closed-umbrella umbrella-with-rain-drops",
    "book": "closed-book green-book blue-book orange-book open-book notebook "
    "notebook-with-decorative-cover ledger",
    "clock": "alarm-clock mantelpiece-clock one-oclock four-oclock ten-oclock eight-thirty",
    "tree": "deciduous-tree evergreen-tree palm-tree christmas-tree leafless-tree",
    "flower": "tulip rose sunflower hibiscus cherry-blossom blossom hyacinth lotus wilted-flower",
    "house": "house derelict-house",
    "key": "key old-key",
    "guitar": "guitar",
}

_FXEMOJI_NAMES = {
    "cat": "cat catside",
    "dog": "dog dogside poodle",
    "horse": "horse horseface",
    "pig": "pig pigside",
    "fish": "fish tropicalfish blowfish",
    "car": "automobile oncomingautomobile policecar oncomingpolicecar racecar recreationalvehicle",
    "bus": "bus oncomingbus trolleybus",
    "bicycle": "bicycle",
    "airplane": "airplane",
    "boat": "speedboat",
    "apple": "redapple greenapple",
    "banana": "banana",
    "pizza": "sliceofpizza",
    "cake": "birthdaycake shortcake",
    "cup": "teacupwithouthandle hotbeverage",
    "ball": "soccerball baseball tennisball americanfootball rugbyfootball",
    "umbrella": "umbrella umbrellawithraindrops",
    "book": "closedbook greenbook bluebook orangebook openbook notebook notebookdecorativecover "
    "ledger",
    "clock": "alarmclock manltepiececlock clock1oclock clock7oclock clock2thirty",
    "tree": "deciduoustree evergreen palmtree christmastree",
    "flower": "tulip rose sunflower hibiscus cherryblossom blossom",
    "house": "housebuilding",
    "key": "key oldkey",
    "guitar": "guitar",
}

# shows another thing (racket, hoop, hearts), text that `ocr` would have to read, no clear object
_REJECTED = {
    "noto": "tennis",
    "noto-v1": "tennis basketball taxi oncoming-taxi derelict-house "
    # these are not in the pack
    "black-cat guide-dog service-dog cupcake cup-with-straw bubble-tea softball leafless-tree "
    "hyacinth lotus",
    "fluent-emoji": "tennis kissing-cat leafless-tree",
    "fluent-emoji-flat": "tennis kissing-cat leafless-tree",
    "twemoji": "racing-car airplane-departure airplane-arrival umbrella-with-rain-drops",
}

# drops of rain and runways are dropped: only the largest connected part is kept
_LARGEST_PART = {
    "airplane-departure",
    "airplane-arrival",
    "umbrella-with-rain-drops",
    "umbrellawithraindrops",
    "closed-umbrella",
}

# boats that float on a block of water: the water is no part of the boat
_WATER_VENDORS = {"fluent-emoji", "fluent-emoji-flat", "twemoji"}
_WATER_TOLERANCE = 75


@dataclass(frozen=True, eq=False)
class Drawing:
    """One emoji or icon: rgba (H, W, 4) uint8, straight alpha, the longer side SIDE."""

    vendor: str
    name: str
    label: str
    rgba: np.ndarray


def cache_folder() -> Path:
    """The folder of fetched packs and rendered drawings."""
    return Path(os.environ.get("VLMTASKS_CACHE", Path.home() / ".cache" / "vlmtasks"))


def drawings_path(vendor: str) -> Path:
    """Where the rendered drawings of a vendor lie in the cache."""
    return cache_folder() / f"drawings-{vendor}-{PACKS[vendor]}-{SIDE}-{_RENDERING}.npz"


def drawing_names(vendor: str) -> list[tuple[str, str]]:
    """(label, drawing name) of all chosen drawings of a vendor, in class order."""
    table = _FXEMOJI_NAMES if vendor == "fxemoji" else _NAMES
    rejected = _REJECTED.get(vendor, "").split()
    return [
        (label, name) for label in LABELS for name in table[label].split() if name not in rejected
    ]


def fetch_pack(name: str, version: str) -> Path:
    """An npm tarball of `@iconify-json`, fetched with `npm pack` when it is not in the cache."""
    path = cache_folder() / "npm" / f"iconify-json-{name}-{version}.tgz"
    if path.is_file():
        return path
    package = f"@iconify-json/{name}@{version}"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(["npm", "pack", "--silent", package], cwd=path.parent, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise MissingFileError(
            f"npm could not fetch {package} ({error}); put its tarball at {path}"
        ) from error
    return path


@cache
def load_drawings(vendor: str) -> tuple[Drawing, ...]:
    """All chosen drawings of a vendor; the first call fetches and renders them."""
    path = drawings_path(vendor)
    chosen = drawing_names(vendor)
    stored = dict(np.load(path)) if path.is_file() else {}
    if not {name for _, name in chosen} <= stored.keys():
        stored = _render_pack(vendor, [name for _, name in chosen])
        store_drawings(path, stored)
    return tuple(Drawing(vendor, name, label, stored[name]) for label, name in chosen)


def store_drawings(path: Path, stored: dict[str, np.ndarray]) -> None:
    """Write rendered drawings. Several processes may: each replaces the whole file."""
    draft = path.with_name(f"{os.getpid()}-{path.name}")
    np.savez_compressed(draft, **stored)  # type: ignore[arg-type]
    draft.replace(path)


def _render_pack(vendor: str, names: list[str]) -> dict[str, np.ndarray]:
    with tarfile.open(fetch_pack(vendor, PACKS[vendor])) as tar:
        pack = json.load(tar.extractfile("package/icons.json"))  # type: ignore[arg-type]
    rendered = {}
    for name in names:
        icon = find_icon(pack, name)
        width, height = (icon.get(side, pack[side]) for side in ("width", "height"))
        rgba = render_svg(icon["body"], width, height)
        if vendor in _WATER_VENDORS and name in _NAMES["boat"].split():
            rgba = _drain(rgba)
        rendered[name] = _keep_largest_part(rgba) if name in _LARGEST_PART else rgba
    return rendered


def find_icon(pack: dict, name: str) -> dict:
    """The entry of a pack's icons.json, aliases followed."""
    while name in pack.get("aliases", {}):
        name = pack["aliases"][name]["parent"]
    return pack["icons"][name]


def render_svg(body: str, width: float, height: float) -> np.ndarray:
    """(H, W, 4) uint8 RGBA, the longer side SIDE, of an SVG's content of width × height."""
    try:
        import resvg_py
    except ImportError as error:
        raise MissingExtraError("resvg_py", "demo-data") from error
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {width} {height}" width="{width}" height="{height}">{body}</svg>'
    )
    png = resvg_py.svg_to_bytes(svg_string=svg, width=SIDE, height=SIDE, skip_system_fonts=True)
    bgra = np.asarray(cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_UNCHANGED))
    return cv2.cvtColor(bgra, cv2.COLOR_BGRA2RGBA)


def _keep_largest_part(rgba: np.ndarray) -> np.ndarray:
    opaque = (rgba[..., 3] > 127).astype(np.uint8)
    _, parts, stats, _ = cv2.connectedComponentsWithStats(opaque)
    largest = 1 + int(stats[1:, cv2.CC_STAT_AREA].argmax())
    keep = cv2.dilate((parts == largest).astype(np.uint8), np.ones((3, 3), np.uint8))
    rgba = rgba.copy()
    rgba[keep == 0] = 0
    return rgba


def _drain(rgba: np.ndarray) -> np.ndarray:
    """Without the water: what resembles the lowest row's colour and hangs together with it."""
    opaque = rgba[..., 3] > 127
    bottom = np.flatnonzero(opaque.any(1))[-1] - 2
    color = np.median(rgba[bottom][opaque[bottom]][:, :3], axis=0)
    distance = np.linalg.norm(rgba[..., :3].astype(np.float64) - color, axis=2)
    _, parts = cv2.connectedComponents((opaque & (distance < _WATER_TOLERANCE)).astype(np.uint8))
    wet = np.isin(parts, parts[bottom][parts[bottom] > 0])
    wet = cv2.dilate(wet.astype(np.uint8), np.ones((5, 5), np.uint8)) > 0
    dry = rgba.copy()
    dry[wet] = 0
    return _keep_largest_part(dry)


def main() -> None:
    from vlmtasks.demo.icons import icons_path, load_icons  # it imports this module

    for vendor in PACKS:
        print(f"{vendor}: {len(load_drawings(vendor))} drawings in {drawings_path(vendor)}")
    print(f"{len(load_icons())} icons in {icons_path()}")


if __name__ == "__main__":
    main()
