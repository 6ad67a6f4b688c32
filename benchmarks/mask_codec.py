"""How much of a real mask survives the codec: ``python benchmarks/mask_codec.py``.

Every instance mask of a COCO file goes mask → crop to its box → 16 codes → 64×64 map, and is
compared twice: at 64×64, and pasted back into its box at the picture's resolution. With
``--emoji`` the silhouettes of a vendor that the codec was not trained on are measured too.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from vqvae import CodecInputError, MaskCodec, crop_mask

DATA = Path(os.environ.get("VLMTASKS_TEST_DATA", "../shared/data"))
SMALL_AREA, LARGE_AREA = 32**2, 96**2  # as COCO divides objects


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--instances",
        type=Path,
        default=DATA / "coco-tiny/annotations/instances_val2017.json",
        help="COCO instances [%(default)s; its root also by VLMTASKS_TEST_DATA]",
    )
    parser.add_argument("--codec", type=Path, help="weights file [the bundled codec]")
    parser.add_argument("--emoji", type=Path, help="an @iconify-json/twemoji tarball (npm pack)")
    options = parser.parse_args(arguments)
    codec = MaskCodec.load(options.codec)
    print(f"codec sha256 {codec.fingerprint}")
    measure_coco(codec, options.instances)
    if options.emoji:
        measure_emoji(codec, options.emoji)


def measure_coco(codec: MaskCodec, instances: Path) -> None:
    """Print mean IoU over all non-crowd instances and by size; an empty crop counts as 0."""
    from pycocotools.coco import COCO

    coco = COCO(str(instances))
    whole, crops, areas = [], [], []
    empty = 0
    for annotation in coco.dataset["annotations"]:
        if annotation["iscrowd"]:
            continue
        mask = coco.annToMask(annotation)
        box = _box_pixels(annotation["bbox"])
        height, width = mask.shape
        try:
            x1, y1, x2, y2 = box
            share = (x1 / width, y1 / height, x2 / width, y2 / height)
            crops.append(crop_mask(mask, share))
        except CodecInputError:
            empty += 1
            continue
        whole.append((mask, box))
        areas.append(annotation["area"])
    codes = codec.encode(np.stack(crops))
    maps = codec.decode(codes)
    at_64 = [iou(map_ > 0, crop > 0.5) for map_, crop in zip(maps, crops, strict=True)]
    pasted = [
        iou(paste(map_, box, mask.shape), mask > 0)
        for map_, (mask, box) in zip(maps, whole, strict=True)
    ]
    print(f"{len(crops)} masks of {instances.name}, {empty} more without a pixel (counted as 0)")
    print(f"{'':12}{'masks':>7}{'64×64':>9}{'pasted':>9}")
    for name, chosen in _by_size(np.array(areas)):
        missed = empty if name in ("all", "small") else 0
        means = [_mean_with_zeros(np.array(values)[chosen], missed) for values in (at_64, pasted)]
        print(f"{name:12}{chosen.sum() + missed:7}{means[0]:9.4f}{means[1]:9.4f}")
    print(f"codes in use: {len(np.unique(codes))} of 128")


def measure_emoji(codec: MaskCodec, tarball: Path) -> None:
    """Print mean IoU at 64×64 over all silhouettes of a vendor, skin tones and flags left out."""
    from vqvae.silhouettes import draw_svg_alpha, read_icons

    crops = []
    for name, icon in read_icons(tarball).items():
        if "skin-tone" in name or name.startswith("flag-"):
            continue
        mask = draw_svg_alpha(*icon) > 127
        rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
        height, width = mask.shape
        box = (
            columns[0] / width,
            rows[0] / height,
            (columns[-1] + 1) / width,
            (rows[-1] + 1) / height,
        )
        crops.append(crop_mask(mask, box))
    masks = np.stack(crops)
    maps = codec.decode(codec.encode(masks))
    mean = np.mean([iou(map_ > 0, mask > 0.5) for map_, mask in zip(maps, masks, strict=True)])
    print(f"{len(masks)} silhouettes of {tarball.name}: {mean:.4f} at 64×64")


def paste(
    map_hw: np.ndarray, box_xyxy: tuple[int, int, int, int], shape: tuple[int, ...]
) -> np.ndarray:
    """The 64×64 map resized into its box, then thresholded: bool (H, W)."""
    x1, y1, x2, y2 = box_xyxy
    size_wh = (x2 - x1, y2 - y1)
    resized = Image.fromarray(map_hw).resize(size_wh, Image.Resampling.BILINEAR)
    mask = np.zeros(shape, bool)
    target = mask[y1:y2, x1:x2]
    target[:] = (np.asarray(resized) > 0)[: target.shape[0], : target.shape[1]]
    return mask


def iou(mask: np.ndarray, truth: np.ndarray) -> float:
    """Intersection over union of two bool arrays; two empty ones are equal, 1."""
    either = (mask | truth).sum()
    return float((mask & truth).sum() / either) if either else 1.0


def _box_pixels(bbox_xywh: Sequence[float]) -> tuple[int, int, int, int]:
    x, y, width, height = bbox_xywh
    return round(x), round(y), round(x + width), round(y + height)


def _by_size(areas: np.ndarray) -> list[tuple[str, np.ndarray]]:
    return [
        ("all", np.full(len(areas), True)),
        ("small", areas < SMALL_AREA),
        ("medium", (areas >= SMALL_AREA) & (areas <= LARGE_AREA)),
        ("large", areas > LARGE_AREA),
    ]


def _mean_with_zeros(values: np.ndarray, zeros: int) -> float:
    return float(values.sum() / max(1, len(values) + zeros))


if __name__ == "__main__":
    main()
