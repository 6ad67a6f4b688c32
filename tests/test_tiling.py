"""Large pictures in tiles: every object once, whole, with its mask."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from PIL import Image
from stub_engine import StubEncoded, StubEngine

from vlmtasks.api import VLM
from vlmtasks.errors import InputError
from vlmtasks.masks import Masks
from vlmtasks.results import Detections, Removed
from vlmtasks.tiling import merge_tiles, tile_boxes
from vlmtasks.tokens import encode_box, format_object, format_objects

FULL = np.ones((64, 64), np.float32)
SIZE = (300, 200)


def found(
    boxes: list[tuple[float, ...]],
    size_wh: tuple[int, int],
    labels: tuple[str, ...] | None = None,
    scores: tuple[float, ...] | None = None,
    masks: bool = False,
    **more: Any,
) -> Detections:
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4),
        labels or ("cat",) * len(boxes),
        np.array(scores or (0.5,) * len(boxes), np.float32),
        size_wh,
        Masks([FULL] * len(boxes), np.array(boxes).reshape(-1, 4), size_wh) if masks else None,
        **more,
    )


# --- where tiles lie -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size_wh", "tiles"),
    [
        pytest.param((100, 100), [(0, 0, 100, 100)], id="just a tile"),
        pytest.param((60, 40), [(0, 0, 60, 40)], id="smaller"),
        pytest.param((175, 100), [(0, 0, 175, 100), (0, 0, 100, 100), (75, 0, 175, 100)], id="two"),
        pytest.param((90, 101), [(0, 0, 90, 101), (0, 0, 90, 100), (0, 1, 90, 101)], id="one more"),
    ],
)
def test_tiles(size_wh: tuple[int, int], tiles: list[tuple[int, ...]]) -> None:
    assert tile_boxes(size_wh, 100) == tiles


@pytest.mark.parametrize("size_wh", [(1000, 300), (640, 481), (101, 99), (5000, 101)])
@pytest.mark.parametrize("overlap", [0.0, 0.25, 0.5])
def test_tiles_cover_the_picture_and_overlap(size_wh: tuple[int, int], overlap: float) -> None:
    _, *tiles = tile_boxes(size_wh, 100, overlap)
    columns = sorted({(x0, x1) for x0, _, x1, _ in tiles})
    rows = sorted({(y0, y1) for _, y0, _, y1 in tiles})
    assert len(tiles) == len(columns) * len(rows)
    for spans, length in ((columns, size_wh[0]), (rows, size_wh[1])):
        assert (spans[0][0], spans[-1][1]) == (0, length)
        assert all(stop - start == min(100, length) for start, stop in spans)
        shared = [before[1] - after[0] for before, after in pairwise(spans)]
        assert all(pixels >= 100 * overlap - 1 for pixels in shared)


@pytest.mark.parametrize(
    ("tile", "overlap"), [(1, 0.2), (0, 0.2), (True, 0.2), (2.5, 0.2), (100, 1.0), (100, -0.1)]
)
def test_wrong_tile_is_told(tile: Any, overlap: float) -> None:
    with pytest.raises(InputError, match=r"tile is|overlap of tiles is"):
        tile_boxes(SIZE, tile, overlap)


# --- what becomes of the parts -------------------------------------------------------------------

WHOLE, LEFT, RIGHT = (0, 0, 300, 200), (0, 0, 200, 200), (100, 0, 300, 200)


def merge(whole: Detections, left: Detections, right: Detections) -> Detections:
    return merge_tiles([WHOLE, LEFT, RIGHT], [whole, left, right], SIZE)


NOTHING = {"whole": found([], SIZE), "tile": found([], (200, 200))}


def test_parts_of_an_object_that_no_tile_sees_whole_are_joined() -> None:
    left = found([(50, 60, 200, 140)], (200, 200), scores=(0.4,), masks=True)
    right = found([(0, 62, 150, 140)], (200, 200), scores=(0.7,), masks=True)
    result = merge(found([], SIZE, masks=True), left, right)
    assert result.boxes_xyxy.tolist() == [[50, 60, 250, 140]]
    assert result.scores.tolist() == pytest.approx([0.7])
    assert result.masks is not None
    expected = np.zeros((200, 300), bool)
    expected[60:140, 50:200] = True
    expected[62:140, 100:250] = True
    np.testing.assert_array_equal(result.masks[0], expected)


def test_tile_that_sees_all_of_an_object_is_believed() -> None:
    left = found([(110, 60, 190, 140)], (200, 200), scores=(0.4,), masks=True)
    right = found([(0, 50, 90, 150)], (200, 200), scores=(0.7,), masks=True)  # cut at its left
    result = merge(found([], SIZE, masks=True), left, right)
    assert result.boxes_xyxy.tolist() == [[110, 60, 190, 140]]
    assert result.scores.tolist() == pytest.approx([0.7])
    assert result.masks is not None and result.masks.area(0) == 80 * 80


def test_whole_picture_is_believed_where_all_tiles_cut() -> None:
    whole = found([(52, 61, 251, 139)], SIZE, scores=(0.3,))
    left = found([(50, 60, 200, 140)], (200, 200))
    right = found([(0, 60, 150, 140)], (200, 200))
    assert merge(whole, left, right).boxes_xyxy.tolist() == [[52, 61, 251, 139]]


def test_tile_sees_better_than_the_whole_picture() -> None:
    whole = found([(10, 10, 40, 40)], SIZE, scores=(0.9,))
    left = found([(12, 12, 41, 41)], (200, 200))
    assert merge(whole, left, NOTHING["tile"]).boxes_xyxy.tolist() == [[12, 12, 41, 41]]


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        pytest.param(
            found([(110, 10, 140, 60), (150, 10, 180, 60)], (200, 200)),
            found([(10, 10, 40, 60), (50, 10, 80, 60)], (200, 200)),
            [[110, 10, 140, 60], [150, 10, 180, 60]],
            id="two neighbours in both tiles",
        ),
        pytest.param(
            found([(110, 10, 140, 60)], (200, 200), ("cat",)),
            found([(10, 10, 40, 60)], (200, 200), ("dog",)),
            [[110, 10, 140, 60], [110, 10, 140, 60]],
            id="two classes",
        ),
        pytest.param(
            found([(110, 10, 140, 60)], (200, 200), ("Cat",)),
            found([(10, 10, 40, 60)], (200, 200), ("cat",)),
            [[110, 10, 140, 60]],
            id="one class in two cases",
        ),
        pytest.param(
            found([(10, 10, 60, 60)], (200, 200)),
            found([(150, 10, 190, 60)], (200, 200)),
            [[10, 10, 60, 60], [250, 10, 290, 60]],
            id="far apart",
        ),
        pytest.param(
            found([(110, 10, 198, 60)], (200, 200)),
            found([(10, 120, 98, 190)], (200, 200)),
            [[110, 10, 198, 60], [110, 120, 198, 190]],
            id="above each other",
        ),
        pytest.param(
            found([(100, 10, 140, 60), (102, 10, 141, 60)], (200, 200)),
            NOTHING["tile"],
            [[100, 10, 140, 60], [102, 10, 141, 60]],
            id="the same tile",
        ),
    ],
)
def test_objects_stay_apart_or_become_one(
    left: Detections, right: Detections, expected: list[list[float]]
) -> None:
    assert merge(NOTHING["whole"], left, right).boxes_xyxy.tolist() == expected


def test_long_object_over_three_tiles_comes_once() -> None:
    size = (400, 100)
    tiles = tile_boxes(size, 100, 0.0)
    parts = [found([], size)]
    parts += [found([(0, 40, 100, 60)], (100, 100)) for _ in range(4)]
    apart = merge_tiles(tiles, parts, size)
    assert len(apart) == 4  # without overlap nothing says that they belong together
    tiles = tile_boxes(size, 160, 0.25)
    seen = [(max(20, x0) - x0, 40, min(380, x1) - x0, 60) for x0, _, x1, _ in tiles[1:]]
    parts = [found([], size), *(found([box], (160, 100)) for box in seen)]
    assert merge_tiles(tiles, parts, size).boxes_xyxy.tolist() == [[20, 40, 380, 60]]


def test_everything_else_of_the_answers_is_kept() -> None:
    gone = Removed("cat", 0.1, (1.0, 2.0, 3.0, 4.0), "overlap")
    result = merge(
        found([], SIZE, text="a"),
        found([], (200, 200), text="b", finish_reason="length"),
        found([], (200, 200), text="c", removed=(gone,)),
    )
    assert (result.text, result.finish_reason, result.image_size) == ("a\nb\nc", "length", SIZE)
    assert result.removed == (Removed("cat", 0.1, (101.0, 2.0, 103.0, 4.0), "overlap"),)
    assert len(result) == 0


def test_number_of_results_must_fit() -> None:
    with pytest.raises(InputError, match="1 results for 2 tiles"):
        merge_tiles([WHOLE, LEFT], [NOTHING["whole"]], SIZE)


# --- through the verbs ---------------------------------------------------------------------------

TRUTH = [(20, 30, 60, 70), (150, 80, 340, 130), (420, 10, 470, 90), (10, 220, 480, 290)]
BIG = (500, 300)


class Eye(StubEngine):
    """Sees the red rectangles of `TRUTH` in any crop: it looks at the pixels that it is given."""

    def __init__(self, codes: str = "") -> None:
        super().__init__()
        self.codes = codes
        self._pictures: list[Image.Image] = []
        self.answer = self._look

    def encode_image(self, pictures: Any) -> list[StubEncoded]:
        first = len(self._pictures)
        self._pictures += pictures
        super().encode_image(pictures)
        return [StubEncoded(p.size, (first + n, 0, 0)) for n, p in enumerate(pictures)]

    def _look(self, prompt: str, image: StubEncoded) -> str:
        pixels = np.asarray(self._pictures[image.colour[0]])
        records = []
        for red in range(1, len(TRUTH) + 1):
            ys, xs = np.nonzero(pixels[..., 0] == red)
            if len(ys) > 20:
                box = (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)
                codes = [5] * 16 if self.codes else None
                records.append(format_object(encode_box(box, image.image_size), "thing", codes))
        return format_objects(records)


def scene() -> Image.Image:
    pixels = np.zeros((BIG[1], BIG[0], 3), np.uint8)
    for red, (x0, y0, x1, y1) in enumerate(TRUTH, start=1):
        pixels[y0:y1, x0:x1, 0] = red
    return Image.fromarray(pixels)


def ordered(result: Detections) -> np.ndarray:
    return result.boxes_xyxy[np.argsort(result.boxes_xyxy[:, 0] + 1000 * result.boxes_xyxy[:, 1])]


@pytest.mark.parametrize("tile", [150, 200, 320])
def test_tiled_detection_finds_every_object_once(tile: int) -> None:
    engine = Eye()
    result = VLM(engine).detect(scene(), "thing", tile=tile)
    plain = VLM(Eye()).detect(scene(), "thing")
    assert len(result) == len(plain) == len(TRUTH)
    np.testing.assert_allclose(ordered(result), ordered(plain), atol=0.6)
    assert result.image_size == BIG
    sides = {size for batch in engine.encoded for size in batch}
    assert sides == {BIG, (tile, min(tile, BIG[1]))}


def test_tiles_of_several_pictures_run_in_batches() -> None:
    engine = Eye()
    small = Image.new("RGB", (90, 90))
    results = VLM(engine).detect([scene(), small, scene()], "thing", tile=200, batch_size=4)
    assert [len(one) for one in results] == [4, 0, 4]
    assert [len(batch) for batch in engine.prompts] == [4, 4, 4, 3]  # 2 · (6 tiles + whole) + 1


def test_tiled_masks_are_whole() -> None:
    class Full:
        fingerprint = "0" * 64

        def decode(self, codes: Any) -> np.ndarray:
            return np.ones((len(codes), 64, 64), np.float32)

    result = VLM(Eye("yes"), mask_codec=Full()).segment(scene(), "thing", tile=200)  # type: ignore[arg-type]
    assert result.masks is not None and len(result) == len(TRUTH)
    for index in np.argsort(result.boxes_xyxy[:, 1] * 1000 + result.boxes_xyxy[:, 0]):
        box = tuple(result.boxes_xyxy[index].round().astype(int).tolist())
        nearest = min(TRUTH, key=lambda truth: np.abs(np.subtract(truth, box)).sum())
        truth = np.zeros(BIG[::-1], bool)
        truth[nearest[1] : nearest[3], nearest[0] : nearest[2]] = True
        mask = result.masks[int(index)]
        assert (truth & mask).sum() / (truth | mask).sum() > 0.95


def test_encoded_picture_cannot_be_cut() -> None:
    engine = StubEngine()
    with pytest.raises(InputError, match="tile= cuts the picture itself"):
        VLM(engine).detect(StubEncoded(SIZE, (0, 0, 0)), "cat", tile=100)  # type: ignore[arg-type]
