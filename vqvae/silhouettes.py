"""Silhouettes for training the codec: alpha of emoji from npm packages, and glyphs of fonts.

The emoji are drawn once and kept in a cache file. Where npm or resvg is absent the caller trains
on glyphs and generated shapes alone.
"""

import glob
import io
import json
import subprocess
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

SIZE = 128
# never twemoji: it is the vendor that the codec is judged on
PACKAGES = ("noto", "noto-v1", "fxemoji", "fluent-emoji-flat", "fluent-emoji")
_FONT_FOLDERS = ("/usr/share/fonts", "/usr/local/share/fonts", "/Library/Fonts")
_GLYPHS = "ABCDEFGHJKLMNPQRSTUVWXYZabdefghkmnpqrstuy2345679&?@ΔΩΨξЖЯфю♞♜♛♣♠♥★☂☎✂✈✿❄➜➤☘♨☻☃⚑⚓"


def emoji_silhouettes(cache: Path, tarballs: Path, *, per_package: int = 1000) -> np.ndarray:
    """(N, 128, 128) uint8 of 0 or 255, from the cache file or drawn anew and cached.

    Args:
        cache: npz file that is read when it exists and written otherwise.
        tarballs: folder with ``iconify-json-*.tgz``; absent ones are fetched by ``npm pack``.
    """
    if cache.is_file():
        with np.load(cache, allow_pickle=False) as stored:
            return stored["silhouettes"]
    drawn: list[np.ndarray] = []
    seen: set[bytes] = set()
    for package in PACKAGES:
        for silhouette in _draw_package(_tarball(package, tarballs), per_package):
            # faces, flags and keycaps share few outlines; each is kept once
            outline = np.packbits(
                np.asarray(Image.fromarray(silhouette).resize((16, 16), Image.Resampling.BOX)) > 127
            )
            if outline.tobytes() not in seen:
                seen.add(outline.tobytes())
                drawn.append(silhouette)
    cache.parent.mkdir(parents=True, exist_ok=True)
    silhouettes = np.stack(drawn)
    np.savez_compressed(cache, silhouettes=silhouettes)
    return silhouettes


def draw_svg_alpha(body: str, width: float, height: float, size: int = SIZE) -> np.ndarray:
    """(h, w) uint8 alpha of an iconify SVG body, ``size`` pixels wide."""
    import resvg_py

    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    svg = f'<svg {names} viewBox="0 0 {width} {height}">{body}</svg>'
    picture = resvg_py.svg_to_bytes(svg_string=svg, width=size, skip_system_fonts=True)
    return np.asarray(Image.open(io.BytesIO(bytes(picture))).convert("RGBA"))[..., 3]


def read_icons(tarball: Path) -> dict[str, tuple[str, float, float]]:
    """Name -> (SVG body, width, height) of an ``@iconify-json`` tarball."""
    with tarfile.open(tarball) as packed:
        member = packed.extractfile("package/icons.json")
        if member is None:
            raise ValueError(
                f"{tarball} holds no package/icons.json: it is no @iconify-json package"
            )
        icons = json.load(member)
    width, height = icons.get("width", 16), icons.get("height", 16)
    return {
        name: (icon["body"], icon.get("width", width), icon.get("height", height))
        for name, icon in icons["icons"].items()
    }


def glyph_silhouettes() -> np.ndarray:
    """(N, 128, 128) uint8 of 0 or 255: letters and signs of the DejaVu fonts found; N may be 0."""
    fonts = sorted(
        path
        for folder in _FONT_FOLDERS
        for path in glob.glob(f"{folder}/**/DejaVu*.ttf", recursive=True)
        if "ExtraLight" not in path
    )
    drawn = []
    for path in fonts[:16]:
        font = ImageFont.truetype(path, 112)
        for glyph in _GLYPHS:
            picture = Image.new("L", (SIZE, SIZE))
            ImageDraw.Draw(picture).text((SIZE / 2, SIZE / 2), glyph, 255, font, anchor="mm")
            silhouette = (np.asarray(picture) > 127).astype(np.uint8) * 255
            if silhouette.any():
                drawn.append(silhouette)
    return np.stack(drawn) if drawn else np.zeros((0, SIZE, SIZE), np.uint8)


def _tarball(package: str, folder: Path) -> Path:
    for found in sorted(folder.glob(f"iconify-json-{package}-[0-9]*.tgz")):
        return found
    folder.mkdir(parents=True, exist_ok=True)
    command = ["npm", "pack", "--silent", f"@iconify-json/{package}"]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return folder / done.stdout.strip().splitlines()[-1]


def _draw_package(tarball: Path, limit: int) -> list[np.ndarray]:
    icons = read_icons(tarball)
    names = [name for name in icons if "skin-tone" not in name and not name.startswith("flag-")]
    chosen = np.random.default_rng(0).permutation(names)[:limit]
    silhouettes = []
    for name in chosen:
        alpha = draw_svg_alpha(*icons[name])[:SIZE]
        canvas = np.zeros((SIZE, SIZE), np.uint8)
        canvas[: alpha.shape[0], : alpha.shape[1]] = np.where(alpha > 127, 255, 0)
        if canvas.any():
            silhouettes.append(canvas)
    return silhouettes
