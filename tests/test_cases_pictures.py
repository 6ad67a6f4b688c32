"""The reported problems of picture input (I…), and inputs of the same kinds."""

import base64
import io
import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps

from vlmtasks.errors import ImageError
from vlmtasks.images import open_image
from vlmtasks.tokens import parse_objects

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def saved(image, file_format, **options):
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def red_left_blue_right():
    image = Image.new("RGB", (40, 20), RED)
    image.paste(BLUE, (20, 0, 40, 20))
    return image


def oriented(file_format, orientation, **options):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(red_left_blue_right(), file_format, exif=exif, **options)


# --- I01 orientation -----------------------------------------------------------------------------

# orientation → where the stored red half is seen: a pixel of it and one of the blue half
SEEN = {
    1: ((40, 20), (5, 10), (35, 10)),
    2: ((40, 20), (35, 10), (5, 10)),
    3: ((40, 20), (35, 10), (5, 10)),
    4: ((40, 20), (5, 10), (35, 10)),
    5: ((20, 40), (10, 5), (10, 35)),
    6: ((20, 40), (10, 5), (10, 35)),
    7: ((20, 40), (10, 35), (10, 5)),
    8: ((20, 40), (10, 35), (10, 5)),
}


@pytest.mark.parametrize("orientation", SEEN)
@pytest.mark.parametrize(
    ("file_format", "options"),
    [("JPEG", {"quality": 95}), ("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {})],
    ids=["jpeg", "png", "webp", "tiff"],
)
def test_i01_orientation_is_applied(file_format, options, orientation):
    size, red, blue = SEEN[orientation]
    image = open_image(oriented(file_format, orientation, **options))
    assert image.size == size
    np.testing.assert_allclose(image.getpixel(red), RED, atol=1)
    np.testing.assert_allclose(image.getpixel(blue), BLUE, atol=1)


@pytest.mark.parametrize("orientation", SEEN)
@pytest.mark.parametrize("file_format", ["PNG", "TIFF"])
def test_i01_switch_keeps_stored_pixels(file_format, orientation):
    image = open_image(oriented(file_format, orientation), keep_orientation=True)
    assert image.tobytes() == red_left_blue_right().tobytes()


def test_i01_is_applied_once():
    once = open_image(oriented("PNG", 6))
    assert open_image(once).tobytes() == once.tobytes()
    assert open_image(once).size == (20, 40)


@pytest.mark.parametrize("orientation", [0, 9, 255])
def test_i01_unknown_orientation_is_ignored(orientation):
    assert open_image(oriented("PNG", orientation)).size == (40, 20)


def test_i01_damaged_metadata_is_ignored():
    data = saved(red_left_blue_right(), "PNG", exif=b"Exif\x00\x00MM\x00*\x00\x00")
    assert open_image(data).size == (40, 20)


# --- I03 more than eight bits --------------------------------------------------------------------

RAMP = np.arange(0, 65536, 256, dtype=np.uint16).reshape(1, 256)


def ramp_pgm():
    return b"P5 256 1 65535\n" + RAMP.astype(">u2").tobytes()


@pytest.mark.parametrize(
    "picture",
    [
        pytest.param(saved(Image.fromarray(RAMP), "PNG"), id="png"),
        pytest.param(saved(Image.fromarray(RAMP), "TIFF"), id="tiff"),
        pytest.param(ramp_pgm(), id="pgm"),
        pytest.param(Image.fromarray(RAMP), id="I;16"),
        pytest.param(Image.frombytes("I;16B", (256, 1), RAMP.astype(">u2").tobytes()), id="I;16B"),
        pytest.param(Image.fromarray(RAMP.astype(np.int32)), id="I"),
        pytest.param(RAMP, id="uint16"),
        pytest.param(RAMP.astype(">u2"), id="uint16-big-endian"),
        pytest.param(RAMP[:, :, None], id="uint16-one-channel"),
        pytest.param(np.stack([RAMP] * 3, axis=2), id="uint16-three-channels"),
    ],
)
def test_i03_sixteen_bits_become_the_high_byte(picture):
    levels = np.asarray(open_image(picture))
    assert levels.shape == (1, 256, 3)
    assert (levels == np.arange(256).reshape(1, 256, 1)).all()
    assert levels[0, 32768 // 256].tolist() == [128, 128, 128]


def test_i03_dark_sixteen_bit_files_stay_dark():
    dark = np.full((2, 2), 200, np.uint16)
    assert open_image(saved(Image.fromarray(dark), "PNG")).getpixel((0, 0)) == (0, 0, 0)
    assert open_image(b"P5 2 2 65535\n" + dark.astype(">u2").tobytes()).getpixel((0, 0)) == (0,) * 3


@pytest.mark.parametrize(
    ("values", "levels"),
    [
        pytest.param(np.array([[0, 100, 255]], np.int32), [0, 100, 255], id="I-levels"),
        pytest.param(np.array([[0, 100, 255]], np.float32), [0, 100, 255], id="F-levels"),
        pytest.param(np.array([[0, 0.5, 1]], np.float32), [0, 128, 255], id="F-fractions"),
        pytest.param(np.array([[-0.4, 100, 255.4]], np.float32), [0, 100, 255], id="F-rounded"),
        pytest.param(np.array([[0, 256, 65535]], np.int32), [0, 1, 255], id="I-16-bit"),
    ],
)
def test_i03_modes_i_and_f_by_their_range(values, levels):
    assert np.asarray(open_image(Image.fromarray(values)))[0, :, 1].tolist() == levels


@pytest.mark.parametrize("value", [-1.0, 256.0, 65535.0, 1e30, np.nan, np.inf], ids=repr)
def test_i03_floats_without_meaning_are_an_error(value):
    with pytest.raises(ImageError, match=r"must hold 0..1 or 0..255"):
        open_image(Image.fromarray(np.array([[0, value]], np.float32)))


@pytest.mark.parametrize("value", [-1, 65536, 2**31 - 1])
def test_i03_integers_without_meaning_are_an_error(value):
    with pytest.raises(ImageError, match=r"must hold 0..255 or 0..65535"):
        open_image(Image.fromarray(np.array([[0, value]], np.int32)))


# --- I05 colour spaces ---------------------------------------------------------------------------


def test_i05_cmyk_jpeg():
    data = saved(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=100)
    image = open_image(data)
    assert image.mode == "RGB"
    np.testing.assert_allclose(image.getpixel((3, 3)), RED, atol=3)


def test_i05_inverted_cmyk_of_adobe():
    """Pillow writes the Adobe marker and inverts; so does every reader that knows it."""
    data = saved(Image.new("CMYK", (8, 8), (255, 0, 0, 0)), "JPEG", quality=100)
    assert b"Adobe" in data[:64]
    np.testing.assert_allclose(open_image(data).getpixel((3, 3)), (0, 255, 255), atol=3)


def lab_red():
    return Image.merge("LAB", [Image.new("L", (2, 2), value) for value in (138, 209, 198)])


@pytest.mark.parametrize(
    ("image", "colour", "tolerance"),
    [
        pytest.param(Image.new("CMYK", (2, 2), (0, 255, 255, 0)), RED, 0, id="CMYK"),
        pytest.param(Image.new("RGB", (2, 2), RED).convert("YCbCr"), RED, 2, id="YCbCr"),
        pytest.param(Image.new("RGB", (2, 2), RED).convert("HSV"), RED, 2, id="HSV"),
        pytest.param(lab_red(), RED, 5, id="LAB"),
        pytest.param(Image.new("RGBX", (2, 2), (255, 0, 0, 7)), RED, 0, id="RGBX"),
        pytest.param(Image.new("RGB", (2, 2), RED).convert("P"), RED, 0, id="P"),
        pytest.param(Image.new("L", (2, 2), 9), (9, 9, 9), 0, id="L"),
    ],
)
def test_i05_every_mode_becomes_rgb(image, colour, tolerance):
    opened = open_image(image)
    assert (opened.mode, opened.size) == ("RGB", (2, 2))
    np.testing.assert_allclose(opened.getpixel((1, 1)), colour, atol=tolerance)


# --- transparency --------------------------------------------------------------------------------


def palette_with_hole(hole):
    image = Image.new("P", (2, 1), 0)
    image.putpalette([255, 0, 0, 10, 20, 30])
    image.putpixel((1, 0), 1)
    image.info["transparency"] = hole
    return image


@pytest.mark.parametrize(
    "picture",
    [
        pytest.param(palette_with_hole(1), id="P-index"),
        pytest.param(palette_with_hole(b"\xff\x00"), id="P-bytes"),
        pytest.param(saved(palette_with_hole(1), "PNG"), id="png-palette"),
        pytest.param(saved(palette_with_hole(1), "GIF", transparency=1), id="gif"),
        pytest.param(palette_with_hole(1).convert("RGBA"), id="RGBA"),
        pytest.param(palette_with_hole(1).convert("RGBA").convert("RGBa"), id="RGBa"),
        pytest.param(palette_with_hole(1).convert("PA"), id="PA"),
        pytest.param(saved(palette_with_hole(1).convert("RGBA"), "WEBP", lossless=True), id="webp"),
        pytest.param(
            np.array([[[255, 0, 0, 255], [10, 20, 30, 0]]], np.uint8), id="array-RGBA"
        ),
        pytest.param(
            saved(Image.fromarray(np.array([[RED, (1, 2, 3)]], np.uint8)), "PNG",
                  transparency=(1, 2, 3)), id="png-RGB-one-colour"
        ),
    ],
)  # fmt: skip
def test_transparent_pixels_are_white(picture):
    image = open_image(picture)
    assert [image.getpixel((x, 0)) for x in (0, 1)] == [RED, WHITE]


@pytest.mark.parametrize("mode", ["LA", "La"])
def test_grey_with_alpha(mode):
    image = Image.new("LA", (3, 1), (100, 255))
    image.putpixel((1, 0), (100, 0))
    image.putpixel((2, 0), (0, 128))
    opened = open_image(image.convert(mode))
    assert [opened.getpixel((x, 0))[1] for x in range(3)] == [100, 255, 127]


def test_left_over_transparency_entry_is_ignored():
    image = Image.new("RGB", (2, 2), RED)
    image.info["transparency"] = 3
    assert open_image(image).getpixel((0, 0)) == RED
    assert image.info == {"transparency": 3}


# --- I07 several frames --------------------------------------------------------------------------


def frames():
    return [Image.new("RGB", (6, 4), colour) for colour in (RED, GREEN, BLUE)]


MULTI = [("GIF", {"duration": 100}), ("TIFF", {}), ("PNG", {}), ("WEBP", {"lossless": True})]


@pytest.mark.parametrize(("file_format", "options"), MULTI, ids=[name for name, _ in MULTI])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_i07_first_frame_wherever_the_caller_is(file_format, options, position):
    first, *others = frames()
    data = saved(first, file_format, save_all=True, append_images=others, **options)
    image = Image.open(io.BytesIO(data))
    image.seek(position)
    here = image.convert("RGB").tobytes()
    opened = open_image(image)
    assert (opened.size, opened.getcolors()) == ((6, 4), [(24, RED)])
    assert image.tell() == position
    assert image.convert("RGB").tobytes() == here
    assert open_image(data).tobytes() == opened.tobytes()


# --- I09 truncated files -------------------------------------------------------------------------

NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM"])
def test_i09_half_a_file_is_named_and_called_truncated(tmp_path, file_format):
    data = saved(NOISE, file_format)
    bad = tmp_path / f"bad.{file_format.lower()}"
    bad.write_bytes(data[: len(data) // 2])
    with pytest.raises(ImageError, match="truncated") as caught:
        open_image(bad)
    assert str(bad) in str(caught.value)
    with Image.open(bad) if file_format != "WEBP" else open(bad) as opened_by_the_caller:
        if file_format != "WEBP":  # which Pillow refuses to open at all
            with pytest.raises(ImageError, match=f"bad.{file_format.lower()} is truncated"):
                open_image(opened_by_the_caller)
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


@pytest.mark.parametrize("length", [1, 4, 8, 12, 20, 40])
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "GIF", "WEBP", "TIFF"])
def test_i09_the_head_alone_is_an_error(file_format, length):
    with pytest.raises(ImageError, match="truncated"):
        open_image(saved(NOISE, file_format)[:length])


@pytest.mark.parametrize("place", [0.25, 0.5, 0.9])
def test_i09_a_damaged_byte_in_the_pixels_of_a_png_is_an_error(place):
    """Pillow reads a PNG's pixels for its metadata too; the error must not be lost there."""
    data = bytearray(saved(NOISE, "PNG"))
    data[int(place * len(data))] ^= 255
    with pytest.raises(ImageError, match="damaged"):
        open_image(bytes(data))


# --- I11 grey, 1 bit and arrays ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("picture", "size", "colour"),
    [
        (Image.new("L", (5, 7), 100), (5, 7), (100, 100, 100)),
        (Image.new("1", (4, 4), 1), (4, 4), WHITE),
        (saved(Image.new("1", (4, 4), 1), "PNG"), (4, 4), WHITE),
        (np.full((7, 5), 100, np.uint8), (5, 7), (100, 100, 100)),
        (np.full((7, 5, 1), 100, np.uint8), (5, 7), (100, 100, 100)),
        (np.full((7, 5, 3), (1, 2, 3), np.uint8), (5, 7), (1, 2, 3)),
        (np.full((7, 5, 4), (1, 2, 3, 255), np.uint8), (5, 7), (1, 2, 3)),
        (np.ones((7, 5), bool), (5, 7), WHITE),
        (np.zeros((7, 5), bool), (5, 7), (0, 0, 0)),
        (np.full((7, 5, 3), 1.0, np.float32), (5, 7), WHITE),
        (np.full((7, 5), 0.5, np.float64), (5, 7), (128, 128, 128)),
        (np.full((7, 5), 0.5, np.float16), (5, 7), (128, 128, 128)),
        (np.full((7, 5, 3), 1.0000001, np.float64), (5, 7), WHITE),
        (np.full((7, 5, 3), 255, np.int64), (5, 7), WHITE),
        (np.full((7, 5, 3), 100, np.int8), (5, 7), (100, 100, 100)),
        (np.full((7, 5, 3), 1, np.uint32), (5, 7), (1, 1, 1)),
        (np.full((7, 5), 100, np.uint8)[::-1, ::-1], (5, 7), (100, 100, 100)),
        (np.full((5, 7), 100, np.uint8, order="F"), (7, 5), (100, 100, 100)),
        (np.zeros((1, 1), np.uint8), (1, 1), (0, 0, 0)),
        (np.zeros((3, 1), np.uint8), (1, 3), (0, 0, 0)),
    ],
    ids=[
        "I11-L", "I11-1", "1-png", "I11-HxW", "I11-HxWx1", "HxWx3", "HxWx4", "bool", "bool-false",
        "float-1", "float64-half", "float16-half", "float-barely-over", "int64", "int8", "uint32",
        "negative-strides", "fortran", "one-pixel", "one-column",
    ],
)  # fmt: skip
def test_i11_grey_and_arrays(picture, size, colour):
    image = open_image(picture)
    assert (image.mode, image.size) == ("RGB", size)
    assert image.getpixel((0, 0)) == colour


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 7, 5), np.uint8), r"transpose\(1, 2, 0\)"),
        (np.zeros((1, 7, 5), np.uint8), r"transpose\(1, 2, 0\)"),
        (np.zeros((7, 5, 5), np.uint8), r"must be \(H, W\)"),
        (np.zeros((7, 5, 2), np.uint8), r"must be \(H, W\)"),
        (np.zeros((2, 7, 5, 3), np.uint8), "list of pictures"),
        (np.zeros(7, np.uint8), r"must be \(H, W\)"),
        (np.array(7, np.uint8), r"must be \(H, W\)"),
        (np.zeros((0, 5), np.uint8), "is empty"),
        (np.zeros((5, 0, 3), np.uint8), "is empty"),
        (np.full((2, 2), np.nan), "NaN"),
        (np.full((2, 2), np.inf), "infinity"),
        (np.full((2, 2), 255.0), "divide by 255"),
        (np.full((2, 2), -0.5), "within 0..1"),
        (np.full((2, 2), 1000, np.float16), "divide by 255"),
        (np.full((2, 2), 1e308), "divide by 255"),
        (np.full((2, 2), 256, np.int32), "16-bit levels must have the dtype uint16"),
        (np.full((2, 2), -1, np.int16), "within 0..255"),
        (np.zeros((2, 2), complex), "holds no levels"),
        (np.full((2, 2), "a"), "holds no levels"),
        (np.full((2, 2), None), "holds no levels"),
        (np.zeros((2, 2), "datetime64[s]"), "holds no levels"),
    ],
    ids=[
        "3xHxW", "1xHxW", "five-channels", "two-channels", "batch", "flat", "scalar", "no-rows",
        "no-columns", "nan", "inf", "float-levels", "negative", "float16-levels", "float-huge",
        "int-over", "int-negative", "complex", "str", "object", "datetime",
    ],
)  # fmt: skip
def test_i11_arrays_that_are_no_picture(array, message):
    with pytest.raises(ImageError, match=message):
        open_image(array)


# --- I13 extreme shapes --------------------------------------------------------------------------


def test_i13_panorama_keeps_its_size_and_maps_back():
    image = open_image(Image.new("RGB", (20000, 100), (5, 5, 5)))
    assert image.size == (20000, 100)
    [found] = parse_objects("<loc0000><loc0000><loc1023><loc1023>", image)
    assert found.box_xyxy == (0.0, 0.0, 19980.46875, 99.90234375)


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1)])
def test_i13_thin_pictures(size):
    assert open_image(saved(Image.new("RGB", size, RED), "PNG")).size == size


# --- invented later ------------------------------------------------------------------------------


def png(colour_type, depth, samples, *chunks):
    """A PNG of one pixel, chunk by chunk."""
    pixel = struct.pack(f">{len(samples)}{'H' if depth == 16 else 'B'}", *samples)
    header = struct.pack(">IIBBBBB", 1, 1, depth, colour_type, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(b"\0" + pixel)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )


HOLE = (b"tRNS", b"\0\0")


@pytest.mark.parametrize(
    ("picture", "colour"),
    [
        pytest.param(png(2, 16, (32768, 16384, 255)), (128, 64, 0), id="rgb-16-bit"),
        pytest.param(png(4, 16, (32768, 65535)), (128,) * 3, id="grey-alpha-16-bit"),
        pytest.param(png(6, 16, (0, 0, 0, 0)), WHITE, id="rgba-16-bit-hole"),
        pytest.param(png(0, 16, (0,), HOLE), WHITE, id="grey-16-bit-hole"),
        pytest.param(png(0, 16, (32768,), HOLE), (128,) * 3, id="grey-16-bit-beside-hole"),
        pytest.param(png(0, 2, (0x80,)), (170,) * 3, id="grey-2-bit"),
        pytest.param(saved(NOISE, "PNG") + b"x" * 5000, NOISE.getpixel((0, 0)), id="bytes-behind"),
        pytest.param(Image.new("RGBA", (2, 2), (9, 9, 9, 0)).convert("PA"), WHITE, id="PA-hole"),
        pytest.param(np.zeros((2, 2, 4)), WHITE, id="float-hole"),
        pytest.param(np.array([[[True, False, True]]]), (255, 0, 255), id="bool-colour"),
        pytest.param(np.asfortranarray(np.full((5, 4, 3), (1, 2, 3), "u1")), (1, 2, 3), id="order"),
        pytest.param(memoryview(saved(Image.new("L", (2, 2), 7), "PNG")), (7,) * 3, id="view"),
    ],
)
def test_what_a_pixel_becomes(picture, colour):
    assert open_image(picture).getpixel((0, 0)) == colour


@pytest.mark.parametrize(
    ("change", "size"),
    [
        pytest.param(ImageOps.exif_transpose, (20, 40), id="turned-by-the-caller"),
        pytest.param(lambda image: image.resize((20, 10)), (10, 20), id="resized"),
        pytest.param(lambda image: image.crop((0, 0, 20, 10)), (10, 20), id="cropped"),
        pytest.param(lambda image: image.copy(), (20, 40), id="copied"),
    ],
)
def test_orientation_of_pictures_that_the_caller_changed(change, size):
    image = Image.open(io.BytesIO(oriented("JPEG", 6)))
    assert open_image(change(image)).size == size


def test_first_picture_of_a_phone_that_takes_two():
    other = Image.new("RGB", (40, 20), GREEN)
    exif = Image.Exif()
    exif[0x0112] = 6
    data = saved(
        red_left_blue_right(), "MPO", save_all=True, append_images=[other], exif=exif, quality=95
    )
    image = open_image(data)
    assert image.size == (20, 40)
    np.testing.assert_allclose(image.getpixel((10, 5)), RED, atol=1)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 99\n"


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        pytest.param(LFS, "git lfs pull", id="lfs"),
        pytest.param(b"%PDF-1.7\n", "convert it to PNG or JPEG", id="pdf"),
        pytest.param(b"\0\0\0\x18ftypheic" + bytes(99), "convert it to PNG or JPEG", id="heic"),
        pytest.param(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "convert it", id="svg"),
        pytest.param(saved(NOISE, "JPEG")[:-40], "truncated", id="last-bytes-missing"),
        pytest.param("file:///tmp/a.png", "address", id="file-url"),
        pytest.param(None, "NoneType", id="what-cv2-gives-for-no-file"),
    ],
)
def test_what_is_no_picture(picture, words):
    with pytest.raises(ImageError, match=words):
        open_image(picture)


def test_lfs_pointer_in_a_file(tmp_path):
    (tmp_path / "a.png").write_bytes(LFS)
    with pytest.raises(ImageError, match=r"a\.png.*git lfs pull"):
        open_image(tmp_path / "a.png")


def test_closed_picture():
    image = Image.open(io.BytesIO(saved(NOISE, "PNG")))
    image.close()
    with pytest.raises(ImageError, match="PIL picture of mode RGB"):
        open_image(image)


def test_matrix_of_numpy():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        matrix = np.matrix([[9, 9]], dtype=np.uint8)
    assert open_image(matrix).getpixel((1, 0)) == (9, 9, 9)


@pytest.mark.parametrize("side", [8, 64, 400], ids=["short", "long", "longer-than-a-path"])
def test_text_of_base64_is_called_so(side):
    image = Image.effect_noise((side, side), 90)
    text = base64.b64encode(saved(image, "PNG")).decode()
    with pytest.raises(ImageError, match=r"base64\.b64decode") as caught:
        open_image(text)
    assert len(str(caught.value)) < 300


def test_long_names_are_told_shortly():
    with pytest.raises(ImageError, match="cannot be opened: File name too long") as caught:
        open_image("x" * 5000)
    assert len(str(caught.value)) < 300


def test_path_in_bytes_is_told():
    with pytest.raises(ImageError, match=r"b'photos/a\.png'.*a path is a str"):
        open_image(b"photos/a.png")
