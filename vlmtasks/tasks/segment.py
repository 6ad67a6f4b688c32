"""Find the objects of some classes with their masks."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vlmtasks import prompts
from vlmtasks.boxes import SizeWH
from vlmtasks.generation import Generation
from vlmtasks.masks import Masks
from vlmtasks.results import Detections
from vlmtasks.tasks.detect import read_answer, to_detections
from vlmtasks.tasks.reading import Reading
from vlmtasks.tokens import BOX_SCALE, ParsedObject, TokenVocabulary


class MaskDecoder(Protocol):
    """The part of `vqvae.MaskCodec` that this task needs."""

    def decode(self, codes: NDArray[np.int64], /) -> NDArray[np.float32]:
        """(N, 16) codes → (N, 64, 64) values, foreground above 0."""
        ...


@dataclass(frozen=True)
class Segment:
    """`segment cat ; dog`."""

    name: str = "segment"
    max_new_tokens: int = 832  # an object takes about 26, so 32 objects

    def prompt(self, labels: str | Iterable[str]) -> str:
        return prompts.segment(labels)

    def parse(
        self,
        generation: Generation,
        *,
        image_size: SizeWH,
        codec: MaskDecoder,
        labels: str | Iterable[str] | None = None,
        vocabulary: TokenVocabulary | None = None,
        scale: int = BOX_SCALE,
        reading: Reading | None = None,
    ) -> Detections:
        """As `Detect.parse`, with masks; an object that came without codes has none.

        codec: the mask codec that belongs to the checkpoint.
        """
        reading = reading or Reading()
        records = read_answer(generation, image_size, labels, vocabulary, scale, reading)
        found = to_detections(generation, records, image_size, vocabulary, reading)
        good = [record for record in records if record.problem is None]
        return replace(found, masks=_decode_masks(good, codec, image_size))


SEGMENT = Segment()


def _decode_masks(records: list[ParsedObject], codec: MaskDecoder, image_size: SizeWH) -> Masks:
    codes = [record.mask_codes for record in records if record.mask_codes is not None]
    decoded = iter(codec.decode(np.array(codes, np.int64)) if codes else ())
    maps = [None if record.mask_codes is None else next(decoded) for record in records]
    boxes = np.array([record.box_xyxy for record in records], np.float64).reshape(-1, 4)
    return Masks(maps, boxes, image_size)
