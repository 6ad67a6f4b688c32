"""A sheet of what a checkpoint answers about held-out scenes, none of them chosen.

    python -m vlmtasks.demo.gallery --out docs/images/gallery.jpg

Scenes 0 … count − 1 of the series are shown, each asked for every class that it holds, with the
caption that the model gives beneath. Photographs are left out as backgrounds, so that the sheet can
be published and made again without them.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from vlmtasks.api import VLM, load
from vlmtasks.demo.scenes import Scene, scene_at

ZOOM = 2
COLUMNS = 5
CAPTION_HEIGHT = 36


def draw_gallery(vlm: VLM, scenes: Sequence[Scene]) -> Image.Image:
    """One picture of all scenes with the masks and boxes found, and the captions."""
    cells = [_cell(vlm, scene) for scene in scenes]
    width, height = cells[0].size
    rows = -(-len(cells) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * width, rows * height), "white")
    for index, cell in enumerate(cells):
        sheet.paste(cell, (index % COLUMNS * width, index // COLUMNS * height))
    return sheet


def _cell(vlm: VLM, scene: Scene) -> Image.Image:
    picture = Image.fromarray(scene.picture)
    encoded = vlm.encode_image(picture)
    classes = list(dict.fromkeys(item.label for item in scene.objects))
    overlay = picture.resize((picture.width * ZOOM, picture.height * ZOOM))
    if classes:
        found = vlm.segment(encoded, classes)
        overlay = found.plot(picture, zoom=ZOOM)
    cell = Image.new("RGB", (overlay.width + 8, overlay.height + CAPTION_HEIGHT), "white")
    cell.paste(overlay, (4, 4))
    words = vlm.caption(encoded) + (f" | ocr: {vlm.ocr(encoded)}" if scene.words else "")
    font = ImageFont.load_default(14)
    ImageDraw.Draw(cell).text((6, overlay.height + 10), words[:48], fill="black", font=font)
    return cell


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw answers about unchosen held-out scenes.")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    os.environ["VLMTASKS_TEST_DATA"] = os.devnull  # no photographs
    scenes = [scene_at(options.seed, index, "test") for index in range(options.count)]
    draw_gallery(load(options.model), scenes).save(options.out, quality=88)


if __name__ == "__main__":
    main()
