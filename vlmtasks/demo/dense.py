"""Dense supervision of the vision tower: what each patch shows, as arrays and as losses.

A tower trained only through the decoder learns slowly. So every image token is also asked, through
the projector and with the decoder's own word, location and code embeddings, which object it shows,
where this object's box ends, which colour and mask codes it has, and which characters lie in it.
The heads that ask are thrown away after training.

Letters: B pictures, S patches, D decoder width, O objects.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn import functional as F

from vlmtasks.demo.network import GRID, PATCH_SIZE

SNAP = 8  # boxes are taught on every 8th bin (1.75 px of 224): sharper answers, same overlap
LOC_CHOICES = np.minimum(np.arange(0, 1024 + SNAP, SNAP), 1023)  # 129 taught bins
COVERED, TOUCHED = 0.12, 0.02  # share of a patch that shows an object for sure; at all
MASK_SIDE = 16
OUTLINE_SIDE = 8
CHARS_PER_PATCH = 2
LONGEST_TEXT = 32  # characters whose places are told apart
MOST_COUNTED = 9
MOST_RANKED = 6
MOST_MASKS = 900  # patches of a batch asked for mask and codes, the dearest questions


def snap_loc(loc: ArrayLike) -> np.ndarray:
    """Index into LOC_CHOICES of the taught bin next to each bin."""
    return np.rint(np.asarray(loc) / SNAP).astype(np.int64)


@dataclass
class DenseTargets:
    """One picture. Index −1 means "nothing", −100 "do not ask"."""

    patch_object: np.ndarray  # (S,) index of the object shown, −1 background, −100 unsure
    outlines: np.ndarray  # (S, OUTLINE_SIDE²) uint8, share of 0 … 255 that it covers of the patch
    centers: np.ndarray  # (O,) the patch that stands for each object
    labels: np.ndarray  # (O,) class index
    colors: np.ndarray  # (O,) colour index or −100
    loc_choices: np.ndarray  # (O, 4) index into LOC_CHOICES, y x y x
    codes: np.ndarray  # (O, 16)
    masks: np.ndarray  # (O, MASK_SIDE, MASK_SIDE) 0..1 within the box
    chars: np.ndarray  # (S, CHARS_PER_PATCH) character index or −1
    char_order: np.ndarray  # (S, CHARS_PER_PATCH) place in the text, or −1
    counts: np.ndarray  # (O,) how many objects of its class there are, 1 … MOST_COUNTED
    ranks: np.ndarray  # (O,) its place among them from left to right, 0 … MOST_RANKED − 1


def keep_patches(
    targets: list[DenseTargets], count: int, rng: np.random.Generator
) -> tuple[np.ndarray, list[DenseTargets]]:
    """`count` patches a picture, those with something on them first, the rest drawn by chance.

    Background teaches little and costs as much. Returns their indices (B, count), ascending, and
    the targets of what is left.
    """
    kept, left = [], []
    for target in targets:
        busy = (target.patch_object >= 0) | (target.chars >= 0).any(1)
        order = np.argsort(0.5 * rng.random(len(busy)) - busy)
        chosen = np.sort(np.union1d(order[: count - len(target.centers)], target.centers))
        missing = count - len(chosen)
        if missing:
            others = np.setdiff1d(order, chosen, assume_unique=True)
            chosen = np.sort(np.concatenate((chosen, rng.permutation(others)[:missing])))
        kept.append(chosen)
        left.append(
            replace(
                target,
                patch_object=target.patch_object[chosen],
                outlines=target.outlines[chosen],
                centers=np.searchsorted(chosen, target.centers),
                chars=target.chars[chosen],
                char_order=target.char_order[chosen],
            )
        )
    return np.stack(kept), left


def counts_and_ranks(labels: np.ndarray, middles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For objects of classes (O,) at x coordinates (O,): `counts` and `ranks` of DenseTargets."""
    same = labels[:, None] == labels
    before = (middles < middles[:, None]) & same
    counts = np.minimum(same.sum(1), MOST_COUNTED).astype(np.int64)
    return counts, np.minimum(before.sum(1), MOST_RANKED - 1).astype(np.int64)


def assign_patches(masks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Visible masks (O, H, W) → (patch_object (S,), centers (O,))."""
    count = len(masks)
    patch_object = np.full(GRID * GRID, -1, np.int64)
    if count == 0:
        return patch_object, np.zeros(0, np.int64)
    cells = masks.reshape(count, GRID, PATCH_SIZE, GRID, PATCH_SIZE)
    share = cells.mean((2, 4), dtype=np.float32).reshape(count, -1)
    strongest = share.argmax(0)
    most = share.max(0)
    patch_object[most >= TOUCHED] = -100
    patch_object[most >= COVERED] = strongest[most >= COVERED]
    rows, columns = np.divmod(np.arange(GRID * GRID), GRID)
    centers = np.zeros(count, np.int64)
    taken = np.zeros(GRID * GRID, bool)
    for index in range(count):
        weight = share[index] / share[index].sum()
        distance = np.hypot(rows - weight @ rows, columns - weight @ columns)
        score = np.minimum(share[index], 0.6) - 0.1 * distance - 10.0 * (share[index] <= 0) - taken
        centers[index] = score.argmax()
        taken[centers[index]] = True
        patch_object[centers[index]] = index
    return patch_object, centers


def outlines(masks: np.ndarray, patch_object: np.ndarray) -> np.ndarray:
    """`outlines` of DenseTargets, for visible masks (O, H, W)."""
    cells = np.zeros((GRID * GRID, OUTLINE_SIDE**2), np.uint8)
    for patch in np.flatnonzero(patch_object >= 0):
        y, x = PATCH_SIZE * (patch // GRID), PATCH_SIZE * (patch % GRID)
        own = masks[patch_object[patch], y : y + PATCH_SIZE, x : x + PATCH_SIZE]
        size = PATCH_SIZE // OUTLINE_SIDE
        shares = own.reshape(OUTLINE_SIDE, size, OUTLINE_SIDE, size).mean((1, 3))
        cells[patch] = np.rint(255 * shares).flatten()
    return cells


class DenseHeads(nn.Module):
    """Asks each image token, with the embeddings of these token ids (digit_ids: of 0 … 9)."""

    def __init__(
        self, size: int, class_ids: list[int], color_ids: list[int], char_ids: list[int],
        digit_ids: list[int], loc_start: int, seg_start: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.class_ids, self.color_ids, self.char_ids = class_ids, color_ids, char_ids
        self.digit_ids = digit_ids
        self.loc_ids = [loc_start + int(bin_) for bin_ in LOC_CHOICES]
        self.seg_ids = list(range(seg_start, seg_start + 128))
        self.background = nn.Parameter(torch.randn(1, size) * 0.03)
        self.no_char = nn.Parameter(torch.randn(1, size) * 0.03)
        self.edges = nn.Linear(size, 4 * size, bias=False)
        self.color = nn.Linear(size, size, bias=False)
        self.center = nn.Linear(size, 1)
        self.mask = nn.Linear(size, MASK_SIDE * MASK_SIDE)
        self.codes = nn.Linear(size, 16 * 64, bias=False)
        self.code_keys = nn.Linear(size, 64, bias=False)
        self.chars = nn.Linear(size, CHARS_PER_PATCH * size, bias=False)
        self.count = nn.Linear(size, size, bias=False)
        self.rank = nn.Linear(size, MOST_RANKED)
        self.char_order = nn.Linear(size, CHARS_PER_PATCH * LONGEST_TEXT)
        self.outline = nn.Linear(size, OUTLINE_SIDE**2)
        for linear in (self.edges, self.color, self.mask, self.codes, self.chars, self.count):
            nn.init.normal_(linear.weight, std=size**-0.5)
        nn.init.normal_(self.code_keys.weight, std=0.3)

    def losses(
        self, image_tokens: Tensor, embeddings: Tensor, targets: list[DenseTargets], spread: float
    ) -> dict[str, Tensor]:
        """image_tokens: (B, S, D); embeddings: (V, D) of the decoder; spread: of the loc labels."""
        h = F.rms_norm(image_tokens.float(), image_tokens.shape[-1:])
        object_of = torch.from_numpy(np.stack([t.patch_object for t in targets]))  # (B, S)
        losses = {"class": self._class(h, embeddings, object_of, targets)}
        losses["center"] = self._center(h, targets)
        losses["char"] = self._char(h, embeddings, targets)
        losses["order"] = self._order(h, targets)
        where = object_of >= 0
        if where.any():
            offsets = np.cumsum([0] + [len(t.labels) for t in targets[:-1]])
            of = (object_of + torch.from_numpy(offsets)[:, None])[
                where
            ]  # (N,) index over all objects
            losses |= self._objects(h[where], embeddings, of, targets, spread)
            wanted = torch.from_numpy(np.stack([t.outlines for t in targets]))[where] / 255.0
            losses["outline"] = F.binary_cross_entropy_with_logits(
                self.outline(h[where]).float(), wanted
            )
        return losses

    def _class(
        self, h: Tensor, E: Tensor, object_of: Tensor, targets: list[DenseTargets]
    ) -> Tensor:
        words = torch.cat((E[self.class_ids], self.background))
        wanted = torch.full(object_of.shape, len(self.class_ids))
        for row, target in enumerate(targets):
            if len(target.labels):
                labels = torch.from_numpy(target.labels)
                wanted[row] = torch.where(
                    object_of[row] >= 0, labels[object_of[row].clamp(min=0)], wanted[row]
                )
        wanted[object_of == -100] = -100
        loss = F.cross_entropy(
            (h @ words.T).float().flatten(0, 1), wanted.flatten(), reduction="none"
        )
        weight = torch.where(object_of.flatten() >= 0, 1.0, 0.3)  # background is most of a picture
        return (loss * weight).sum() / weight.sum()

    def _center(self, h: Tensor, targets: list[DenseTargets]) -> Tensor:
        wanted = torch.zeros(h.shape[:2])
        for row, target in enumerate(targets):
            wanted[row, torch.from_numpy(target.centers)] = 1.0
        weight = torch.tensor(5.0)
        return F.binary_cross_entropy_with_logits(
            self.center(h)[..., 0].float(), wanted, pos_weight=weight
        )

    def _char(self, h: Tensor, E: Tensor, targets: list[DenseTargets]) -> Tensor:
        wanted = torch.from_numpy(np.stack([t.chars for t in targets]))  # (B, S, 2)
        rows = (wanted >= 0).any(-1).any(-1)  # pictures with text, and one without
        rows[0] = True
        words = torch.cat((E[self.char_ids], self.no_char))
        asked = self.chars(h[rows]).unflatten(-1, (CHARS_PER_PATCH, -1))
        wanted = torch.where(wanted[rows] < 0, len(self.char_ids), wanted[rows])
        loss = F.cross_entropy(
            (asked @ words.T).float().flatten(0, 2), wanted.flatten(), reduction="none"
        )
        weight = torch.where(wanted.flatten() == len(self.char_ids), 0.1, 1.0)
        return (loss * weight).sum() / weight.sum()

    def _order(self, h: Tensor, targets: list[DenseTargets]) -> Tensor:
        """Which place in the text the characters have."""
        wanted = torch.from_numpy(np.stack([t.char_order for t in targets]))
        where = (wanted >= 0).any(-1)
        if not where.any():
            return h.new_zeros(())
        asked = self.char_order(h[where]).float().unflatten(-1, (CHARS_PER_PATCH, -1))
        wanted = wanted[where].clamp(max=LONGEST_TEXT - 1).flatten()
        return F.cross_entropy(asked.flatten(0, 1), wanted, ignore_index=-1)

    def _objects(
        self, h: Tensor, E: Tensor, of: Tensor, targets: list[DenseTargets], spread: float
    ) -> dict[str, Tensor]:
        edges = self.edges(h).unflatten(-1, (4, -1))  # (N, 4, D)
        wanted = _joined(targets, "loc_choices")[of]
        losses = {"edge": spread_cross_entropy(edges @ E[self.loc_ids].T, wanted, spread)}
        color_wanted = _joined(targets, "colors")[of]
        if (color_wanted >= 0).any():
            losses["color"] = F.cross_entropy(
                (self.color(h) @ E[self.color_ids].T).float(), color_wanted, ignore_index=-100
            )
        digits = (self.count(h) @ E[self.digit_ids].T).float()
        losses["count"] = F.cross_entropy(digits, _joined(targets, "counts")[of])
        losses["rank"] = F.cross_entropy(self.rank(h).float(), _joined(targets, "ranks")[of])
        some = torch.randperm(len(h))[:MOST_MASKS]
        h, of = h[some], of[some]
        mask_wanted = _joined(targets, "masks")[of].flatten(1)
        losses["mask"] = F.binary_cross_entropy_with_logits(self.mask(h).float(), mask_wanted)
        queries = self.codes(h).unflatten(-1, (16, 64))
        logits = queries @ self.code_keys(E[self.seg_ids]).T  # (N, 16, 128)
        codes = _joined(targets, "codes")[of]
        losses["code"] = F.cross_entropy(logits.float().flatten(0, 1), codes.flatten())
        return losses


def spread_cross_entropy(logits: Tensor, wanted: Tensor, spread: float) -> Tensor:
    """Cross-entropy (…, C) against a bell of `spread` steps around wanted (…); 0 is one-hot."""
    logits = logits.float()
    if spread <= 0:
        return F.cross_entropy(logits.flatten(0, -2), wanted.flatten())
    steps = torch.arange(logits.shape[-1])
    bells = torch.exp(-0.5 * ((steps - steps[:, None]) / spread) ** 2)
    bells = bells / bells.sum(-1, keepdim=True)
    return F.cross_entropy(logits.flatten(0, -2), bells[wanted].flatten(0, -2))


def _joined(targets: list[DenseTargets], field: str) -> Tensor:
    return torch.from_numpy(np.concatenate([getattr(target, field) for target in targets]))
