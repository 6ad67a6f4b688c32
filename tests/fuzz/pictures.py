"""Pictures: damaged files of every format that Pillow writes, PNG with odd chunks, odd arrays."""

import io
import struct
import zlib
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from tests.fuzz.cases import Target
from tests.fuzz.mutations import mutate_bytes, put
from vlmtasks.images import open_image

# format, mode, options of saving
_FORMATS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("PNG", "RGB", {}), ("PNG", "I;16", {}), ("PNG", "P", {"transparency": 3}),
    ("PNG", "LA", {}), ("PNG", "1", {}), ("PNG", "RGBA", {"save_all": True, "frames": 3}),
    ("JPEG", "RGB", {}), ("JPEG", "L", {"progressive": True}), ("JPEG", "CMYK", {}),
    ("GIF", "P", {}), ("GIF", "P", {"save_all": True, "frames": 3}), ("TIFF", "RGB", {}),
    ("TIFF", "RGB", {"compression": "tiff_lzw"}), ("TIFF", "1", {"compression": "group4"}),
    ("TIFF", "F", {}), ("TIFF", "CMYK", {}), ("TIFF", "RGB", {"save_all": True, "frames": 2}),
    ("TIFF", "RGB", {"compression": "jpeg"}), ("WEBP", "RGBA", {}),
    ("WEBP", "RGB", {"lossless": True}), ("WEBP", "RGB", {"save_all": True, "frames": 3}),
    ("BMP", "RGB", {}), ("BMP", "P", {}), ("PPM", "RGB", {}), ("PPM", "L", {}),
    ("PPM", "1", {}), ("ICO", "RGBA", {}), ("ICNS", "RGBA", {}),
    ("TGA", "RGBA", {"compression": "tga_rle"}), ("PCX", "P", {}), ("SGI", "RGB", {}),
    ("JPEG2000", "RGB", {}), ("DDS", "RGBA", {}), ("MSP", "1", {}),
    ("XBM", "1", {}), ("QOI", "RGB", {}), ("AVIF", "RGB", {}),
    ("MPO", "RGB", {"save_all": True, "frames": 2}), ("SPIDER", "F", {}), ("EPS", "RGB", {}),
    ("BLP", "P", {}),
)  # fmt: skip
_SIDES = (0, 1, 2, 13, 20000, 13000, 65535, 65536, 10**6, 2**31 - 1, 2**31, 2**32 - 1)
_DTYPES = ("u1", "u2", ">u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "g", "?", "c8",
           "O", "U3", "S3", "M8[s]", "V4")  # fmt: skip


def _drawing(mode: str, size: tuple[int, int] = (24, 18)) -> Image.Image:
    noise = np.random.default_rng(7).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    return image.convert("L").convert(mode) if mode == "I;16" else image.convert(mode)


@cache
def _files() -> list[bytes]:
    found = []
    for name, mode, options in _FORMATS:
        options = dict(options)
        frames = options.pop("frames", 1)
        if frames > 1:
            options["append_images"] = [_drawing(mode).rotate(90 * n) for n in range(1, frames)]
        if name in ("JPEG", "PNG", "WEBP", "TIFF") and mode == "RGB":
            exif = Image.Exif()
            exif[0x0112] = 6
            exif[0x010E] = "a description"
            options["exif"] = exif
        buffer = io.BytesIO()
        try:
            _drawing(mode).save(buffer, name, **options)
        except (KeyError, OSError):
            continue  # a Pillow without this format, or built without its encoder
        found.append(buffer.getvalue())
    return found


def _png(random: Random) -> bytes:
    """A PNG of valid checksums whose chunks may contradict each other."""
    side = (lambda: random.choice(_SIDES)) if random.random() < 0.5 else (lambda: 8)
    head = struct.pack(
        ">IIBBBBB",
        side(),
        side(),
        random.choice((1, 2, 4, 8, 16, 3)),
        random.choice((0, 2, 3, 4, 6, 1)),
        random.choice((0, 0, 0, 1)),
        random.choice((0, 0, 0, 1)),
        random.choice((0, 0, 1, 2)),
    )
    bomb = zlib.compress(bytes(random.choice((10, 300, 10**6, 2 * 10**7))))
    chunks = [
        (b"IHDR", head),
        *random.sample(
            [
                (b"tRNS", random.randbytes(random.choice((0, 1, 2, 6, 300)))),
                (b"PLTE", random.randbytes(random.choice((0, 3, 4, 768, 900)))),
                (b"eXIf", random.randbytes(20)),
                (b"eXIf", b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"),
                (b"iCCP", b"name\0\0" + bomb),
                (b"zTXt", b"key\0\0" + bomb),
                (b"iTXt", b"key\0\1\0\0\0" + bomb),
                (b"tEXt", b"key\0" + random.randbytes(9)),
                (b"acTL", struct.pack(">II", random.choice((0, 1, 2**31)), 0)),
                (b"fcTL", struct.pack(">IIIIIHHBB", 0, 8, 8, 0, random.choice((0, 9)), 1, 0, 0, 0)),
                (b"gAMA", b"\0\0\0\0"),
                (b"pHYs", bytes(9)),
                (b"IHDR", head),
            ],
            random.randrange(4),
        ),
        (b"IDAT", random.choice((bomb, zlib.compress(bytes(8 * 33)), b"", random.randbytes(40)))),
        (b"IEND", b""),
    ]
    if random.random() < 0.2:
        random.shuffle(chunks)
    data = b"\x89PNG\r\n\x1a\n"
    for name, content in chunks:
        data += struct.pack(">I", len(content)) + name + content
        data += struct.pack(">I", zlib.crc32(name + content))
    return data


def _array(random: Random) -> np.ndarray:
    sides = (0, 1, 1, 2, 3, 4, 5, 7)
    shape = tuple(random.choice(sides) for _ in range(random.choice((0, 1, 2, 2, 3, 3, 3, 4))))
    if len(shape) == 3 and random.random() < 0.7:
        shape = (*shape[:2], random.choice((1, 3, 4)))
    level = random.choice((0, 1, 0.5, 255, 256, 65535, -1, 1e30, float("nan"), float("inf")))
    with np.errstate(all="ignore"):
        array = np.full(shape, level).astype(random.choice(_DTYPES))
    return random.choice((array, array.T, array[::-1] if array.ndim else array))


def make(random: Random) -> tuple[str, Any, Random]:
    kind = random.choice(("bytes", "bytes", "path", "PIL", "png", "array"))
    if kind == "array":
        return kind, _array(random), random
    data = _png(random) if kind == "png" else random.choice(_files())
    if kind != "png" or random.random() < 0.3:
        data = mutate_bytes(random, data)
    return kind, data, random


def feed(value: tuple[str, Any, Random], folder: Path) -> None:
    kind, data, random = value
    picture = data
    if kind == "path":
        picture = folder / random.choice(("a.png", "b.jpg", "c", "d.webp", "猫 %20.tif"))
        put(random, picture, data)
    elif kind == "PIL":
        try:
            picture = Image.open(io.BytesIO(data))
            picture.seek(random.choice((0, 0, 1)))
        except Exception:
            return  # the caller's own error
    for keep_orientation in (False, True):
        opened = open_image(picture, keep_orientation=keep_orientation)
        assert opened.mode == "RGB"
        assert min(opened.size) >= 1
        assert not opened.info
    again = open_image(opened)
    assert (again.size, again.tobytes()) == (opened.size, opened.tobytes()), "not stable"


TARGETS = (Target("picture", make, feed, 250),)
