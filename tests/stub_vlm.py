"""A model for the tests of evaluation: it answers from a table by the size of the picture."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from PIL import Image

from vlmtasks.generation import Generation
from vlmtasks.tasks import DETECT, SEGMENT
from vlmtasks.tokens import format_objects

Records = Mapping[tuple[int, int], Mapping[str, Sequence[str]]]  # size → class → its records


class StubCodec:
    """Code 0 first: the whole box; otherwise its left half."""

    fingerprint = hashlib.sha256(b"stub").hexdigest()

    def decode(self, codes: Any) -> Any:
        import numpy as np

        maps = np.ones((len(codes), 64, 64), np.float32)
        maps[codes[:, 0] > 0, :, 32:] = -1
        return maps


class StubVLM:
    """Has the verbs and the facts that evaluations use. `asked` counts (size, classes)."""

    box_scale = 1024

    def __init__(self, folder: Path, answers: Records | None = None, said: Any = None) -> None:
        self.engine = SimpleNamespace(folder=folder, metadata={}, score_definition="stub")
        self.mask_codec = StubCodec()
        self.asked: list[tuple[tuple[int, int], tuple[str, ...]]] = []
        self._answers = answers or {}
        self._said = said

    def encode_image(self, pictures: list[Image.Image], **_: Any) -> list[Image.Image]:
        return pictures

    def detect(self, pictures: list[Image.Image], labels: Sequence[str], **_: Any) -> list[Any]:
        return [
            DETECT.parse(self._answer(picture, labels), image_size=picture.size, labels=labels)
            for picture in pictures
        ]

    def segment(self, pictures: list[Image.Image], labels: Sequence[str], **_: Any) -> list[Any]:
        return [
            SEGMENT.parse(
                self._answer(picture, labels),
                image_size=picture.size,
                labels=labels,
                codec=self.mask_codec,
            )
            for picture in pictures
        ]

    def generate(
        self, pictures: list[Image.Image], prompts: Sequence[str], **_: Any
    ) -> list[Generation]:
        return [
            Generation(self._said(picture.size, prompt), (), (), "stop")
            for picture, prompt in zip(pictures, prompts, strict=True)
        ]

    def _answer(self, picture: Image.Image, labels: Sequence[str]) -> Generation:
        self.asked.append((picture.size, tuple(labels)))
        known = self._answers.get(picture.size, {})
        records = [record for label in labels for record in known.get(label, [])]
        return Generation(format_objects(records), (), (), "stop")
