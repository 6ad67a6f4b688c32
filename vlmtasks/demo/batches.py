"""Training batches, drawn by a second process: pictures, dense targets, prompts as ids."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.multiprocessing as multiprocessing
from torch import Tensor

from vlmtasks.demo.classes import COLORS, LABELS
from vlmtasks.demo.dense import (
    CHARS_PER_PATCH,
    LOC_CHOICES,
    MASK_SIDE,
    DenseTargets,
    assign_patches,
    counts_and_ranks,
    outlines,
    snap_loc,
)
from vlmtasks.demo.lettering import DIGITS, LETTERS
from vlmtasks.demo.network import GRID, IMAGE_SIZE, PATCH_SIZE
from vlmtasks.demo.objectives import PACKED_TOKENS
from vlmtasks.demo.pointers import points_of_lettering, points_of_objects, points_of_words
from vlmtasks.demo.prompts import Example, make_prompts
from vlmtasks.demo.scenes import Scene, make_scene
from vlmtasks.demo.tokenizer import build_tokenizer
from vlmtasks.demo.vocabulary import BOS_ID, EOS_ID, DemoVocabulary, PromptIds
from vlmtasks.tokens import encode_box, format_object, format_objects
from vqvae import MaskCodec

ALPHABET = LETTERS + DIGITS
AHEAD = 6  # batches drawn in advance
PHOTO_SHARE = 0.2
BOX_SHIFT = 0.06  # of a side, the model's own error
CODE_MIX = 0.9  # at most, of the codes of a mask
# reading is learnt slowly: more lettering than in use
LETTERED_SHARE, CROWDED_LETTERED_SHARE = 0.3, 0.6


@dataclass
class Batch:
    """pictures: (B, H, W, 3) uint8; dense: one a picture; prompts: a list a picture."""

    pictures: np.ndarray
    dense: list[DenseTargets]
    prompts: list[list[PromptIds]]

    def pixels(self) -> Tensor:
        """(B, 3, H, W) float32 in −1..1, as the engine's own preprocessing makes them."""
        return torch.from_numpy(self.pictures).permute(0, 3, 1, 2).float() / 127.5 - 1.0


def batches(
    vocabulary: DemoVocabulary, seed: int, batch_size: int, prompts: int,
    *, first: int = 0, photos: Path | None = None, bfloat16: bool = False,
) -> Iterator[Batch]:  # fmt: skip
    """Endless batches from number `first` on; batch n depends on n and the arguments only."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue(AHEAD)
    worker = context.Process(
        target=_fill,
        args=(queue, vocabulary, seed, batch_size, prompts, first, photos, bfloat16),
        daemon=True,
    )
    worker.start()
    try:
        while True:
            yield queue.get(timeout=300)
    finally:
        worker.terminate()


def sample_pictures(seed: int, count: int) -> np.ndarray:
    """(N, H, W, 3) uint8, drawn training scenes."""
    rng = np.random.default_rng((seed, 11))
    return np.stack([make_scene(rng, "train", crowded=True).picture for _ in range(count)])


def _fill(queue, vocabulary, seed, batch_size, prompts, first, photos, bfloat16) -> None:
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    parent = os.getppid()
    maker = BatchMaker(vocabulary, photos)
    number = first
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        while os.getppid() == parent:
            queue.put(maker.make(seed, number, batch_size, prompts))
            number += 1


class BatchMaker:
    """Draws scenes and turns them into targets."""

    def __init__(self, vocabulary: DemoVocabulary, photos: Path | None) -> None:
        self.vocabulary = vocabulary
        self.tokenizer = build_tokenizer()
        self.codec = MaskCodec.load()
        self.photos = None
        if photos is not None:
            from vlmtasks.demo.photographs import Photographs

            self.photos = Photographs(photos)

    def make(self, seed: int, number: int, batch_size: int, prompts: int) -> Batch:
        scenes, dense, asked = [], [], []
        for index in range(number * batch_size, (number + 1) * batch_size):
            rng = np.random.default_rng((seed, 10, index))
            if self.photos is not None and rng.random() < PHOTO_SHARE:
                scene = self.photos.make_scene(rng, "train")
            else:
                # without prompts only the tower learns, the more the fuller a picture is
                crowded = not prompts and rng.random() < 0.75
                share = CROWDED_LETTERED_SHARE if crowded else LETTERED_SHARE
                scene = make_scene(rng, "train", crowded=crowded, lettered_share=share)
            scenes.append(scene)
            dense.append(self._targets(scene))
            examples = make_prompts(scene, rng, prompts) if prompts else []
            asked.append([_Asked.of(example, scene, dense[-1][0], rng) for example in examples])
        # One call of the codec for all masks: it is a quarter of the work otherwise.
        records = [record for row in asked for one in row for record in one.records]
        masked = [record for record in records if record.crop is not None]
        crops = [crop for _, own in dense for crop in own] + [record.crop for record in masked]
        codes = self.codec.encode(np.array(crops, np.float32).reshape(-1, 64, 64))
        ends = np.cumsum([len(own) for _, own in dense])
        *own_codes, rest = np.split(codes, ends)
        targets = [
            replace(target, codes=own) for (target, _), own in zip(dense, own_codes, strict=True)
        ]
        fed = mix_codes(np.random.default_rng((seed, 12, number)), rest)
        for record, own, other in zip(masked, rest, fed, strict=True):
            record.codes, record.fed_codes = own.tolist(), other.tolist()
        texts = [
            _within_budget([self._prompt_ids(one, scene, own) for one in row])
            for row, scene, own in zip(asked, scenes, targets, strict=True)
        ]
        return Batch(np.stack([scene.picture for scene in scenes]), targets, texts)

    def _targets(self, scene: Scene) -> tuple[DenseTargets, np.ndarray]:
        """Dense targets of a scene, still without codes, and masks (O, 64, 64) to encode."""
        objects = scene.objects
        masks = np.array([item.mask for item in objects]).reshape(-1, IMAGE_SIZE, IMAGE_SIZE)
        patch_object, centers = assign_patches(masks)
        boxes = np.array([item.box_xyxy for item in objects]).reshape(-1, 4)
        choices = snap_loc(np.clip(boxes[:, [1, 0, 3, 2]] * 1024 / IMAGE_SIZE, 0, 1023))
        crops = np.array(
            [crop_to_bins(mask, LOC_CHOICES[c]) for mask, c in zip(masks, choices, strict=True)]
        ).reshape(-1, 64, 64)
        small = crops.reshape(-1, MASK_SIDE, 64 // MASK_SIDE, MASK_SIDE, 64 // MASK_SIDE)
        labels = np.array([LABELS.index(item.label) for item in objects], np.int64)
        counts, ranks = counts_and_ranks(labels, boxes[:, 0] + boxes[:, 2])
        chars, char_order = _patch_chars(scene)
        targets = DenseTargets(
            patch_object=patch_object,
            outlines=outlines(masks, patch_object),
            centers=centers,
            labels=labels,
            colors=np.array(
                [COLORS.index(item.color) if item.color else -100 for item in objects], np.int64
            ),
            loc_choices=choices,
            codes=np.zeros((len(objects), 16), np.int64),
            masks=small.mean((2, 4)).astype(np.float32),
            chars=chars,
            char_order=char_order,
            counts=counts,
            ranks=ranks,
        )
        return targets, crops

    def _prompt_ids(self, asked: "_Asked", scene: Scene, dense: DenseTargets) -> PromptIds:
        """Answers name the taught bins and the codes of the mask within the box that is fed."""
        example, records = asked.example, asked.records
        text = given = example.text
        if records:
            text, given = (
                format_objects(
                    format_object(tuple(LOC_CHOICES[box].tolist()), record.label, codes)
                    for record, box, codes in rows
                )
                for rows in (
                    [(record, record.loc_choices, record.codes) for record in records],
                    [(record, record.fed_choices, record.fed_codes) for record in records],
                )
            )
        prefix = (BOS_ID, *self._encode(example.prefix), self.vocabulary.newline)
        suffix, fed = ((*self._encode(answer), EOS_ID) for answer in (text, given))
        if records:
            points = points_of_objects(
                suffix, [record.row for record in records],
                [record.fed_choices for record in records], dense, self.vocabulary,
            )  # fmt: skip
        elif example.task == "ocr":
            points = points_of_lettering(suffix, scene, self.vocabulary)
        elif example.task in ("question", "caption_box"):
            points = ((),) * len(suffix)
        else:
            points = points_of_words(prefix, suffix, dense, self.vocabulary)
        return PromptIds(prefix, suffix, example.task, points, fed)

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids


@dataclass
class _Record:
    """One record of an answer: object `row` of the scene.

    loc_choices: the true box (4,) in taught bins; fed_choices: the box that the model is told to
    have said; crop: (64, 64) the mask in the latter, None for `detect`; codes: those of the crop;
    fed_codes: those that the model is told to have said.
    """

    row: int
    label: str
    loc_choices: np.ndarray
    fed_choices: np.ndarray
    crop: np.ndarray | None
    codes: list[int] | None = None
    fed_codes: list[int] | None = None


@dataclass
class _Asked:
    example: Example
    records: list[_Record]

    @classmethod
    def of(
        cls, example: Example, scene: Scene, dense: DenseTargets, rng: np.random.Generator
    ) -> "_Asked":
        size_wh = (IMAGE_SIZE, IMAGE_SIZE)
        row_of = {
            (item.label, encode_box(item.box_xyxy, size_wh)): row
            for row, item in enumerate(scene.objects)
        }
        records = []
        for target in example.targets:
            row = row_of[target.label, target.loc_yxyx]
            choices = snap_loc(target.loc_yxyx)
            if target.mask is None:
                records.append(_Record(row, target.label, choices, choices, None))
                continue
            fed = shift_box(rng, choices)
            crop = crop_to_bins(target.mask, LOC_CHOICES[fed])
            records.append(_Record(row, target.label, choices, fed, crop))
        return cls(example, records)


def shift_box(rng: np.random.Generator, loc_choices: np.ndarray) -> np.ndarray:
    """A box of taught bins (4,) y x y x as the model might say it: its edges a little off.

    Masks are learnt within such boxes: a mask that only fits the true box is lost with every error.
    """
    y1, x1, y2, x2 = loc_choices
    sides = np.array([y2 - y1, x2 - x1] * 2)
    shifts = np.rint(rng.normal(0, 1, 4) * BOX_SHIFT * sides).astype(np.int64)
    moved = (loc_choices + shifts).clip(0, len(LOC_CHOICES) - 1)
    return moved if (moved[2:] - moved[:2] >= 2).all() else loc_choices


def mix_codes(rng: np.random.Generator, codes: np.ndarray) -> np.ndarray:
    """Codes (N, 16) as the model might say them: up to CODE_MIX of a mask's are another mask's.

    Told only right ones, it learns to continue masks rather than to look at the picture, and its
    first mistake spoils the rest.
    """
    share = CODE_MIX * rng.random((len(codes), 1))
    strange = codes[rng.permutation(len(codes))]
    return np.where(rng.random(codes.shape) < share, strange, codes)


def _within_budget(prompts: list[PromptIds]) -> list[PromptIds]:
    """The first prompts of at most PACKED_TOKENS tokens: a few long ones would pad all others."""
    ends = np.cumsum([len(prompt.prefix) + len(prompt.suffix) for prompt in prompts])
    return prompts[: max(1, int((ends <= PACKED_TOKENS).sum()))]


def crop_to_bins(mask: np.ndarray, loc_yxyx: np.ndarray) -> np.ndarray:
    """The (64, 64) float32 share of a mask (H, W) bool inside a box of bins, antialiased."""
    y1, x1, y2, x2 = np.asarray(loc_yxyx) * (IMAGE_SIZE / 1024)
    # Four samples a cell and axis, averaged: exact enough for a box of any position and size.
    scale = np.array([[(x2 - x1) / 256, 0, x1 - 0.5], [0, (y2 - y1) / 256, y1 - 0.5]])
    offset = scale[:, :2] @ [0.5, 0.5]
    scale[:, 2] += offset
    fine = cv2.warpAffine(
        mask.astype(np.float32), scale, (256, 256), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    )
    return cv2.resize(fine, (64, 64), interpolation=cv2.INTER_AREA)


def _patch_chars(scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """`chars` (indices into ALPHABET) and `char_order` of DenseTargets, by centres in patches."""
    chars = np.full((GRID * GRID, CHARS_PER_PATCH), -1, np.int64)
    order = chars.copy()
    spelled = [
        (char, box)
        for word in scene.words
        for char, box in zip(word.text, word.char_boxes_xyxy, strict=True)
    ]
    for place, (char, (x1, y1, x2, y2)) in enumerate(spelled):
        column = int((x1 + x2) / 2 // PATCH_SIZE)
        row = int((y1 + y2) / 2 // PATCH_SIZE)
        if 0 <= column < GRID and 0 <= row < GRID:
            patch = row * GRID + column
            free = np.flatnonzero(chars[patch] < 0)
            if len(free):
                chars[patch, free[0]] = ALPHABET.index(char)
                order[patch, free[0]] = place
    return chars, order
