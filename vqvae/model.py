"""The mask codec's networks: 64×64 mask ↔ 16 codes, in the layout of "All in Tokens".

The module names are chosen so that the state dict has exactly the keys of PaliGemma's published
``vae-oid.npz`` (``_vq_vae._embedding``, ``decoder.2.net.0.weight`` …). See Ning et al.,
arXiv 2301.02229, and the segmentation transfer of big_vision for the same decoder in Flax.

Shapes: B batch, K = 128 codes, D = 512 numbers a code, 4×4 positions read row by row.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MASK_SIZE = 64
GRID_SIZE = 4
CODES_PER_MASK = GRID_SIZE * GRID_SIZE
CODEBOOK_SIZE = 128
CODE_DIM = 512
_HIDDEN = 128


class ResBlock(nn.Module):
    """conv3×3, ReLU, conv3×3, ReLU, conv1×1, plus the input; no norm, nothing after the sum."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.net(x)


class Codebook(nn.Module):
    """K rows of D numbers; a buffer, because training moves it by averages, not by gradients."""

    _embedding: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("_embedding", torch.randn(CODEBOOK_SIZE, CODE_DIM))

    def nearest(self, vectors_ND: Tensor) -> Tensor:
        """Index of the row nearest by squared L2, the first on ties: (N, D) -> (N,) int64."""
        # |v|² is the same for all rows of the book and is left out
        squared_K = self._embedding.square().sum(1)
        return (squared_K - 2 * vectors_ND @ self._embedding.T).argmin(1)


class MaskVQVAE(nn.Module):
    """Encoder, codebook and decoder; masks go in and come out as about −1 … 1."""

    def __init__(self) -> None:
        super().__init__()
        self._vq_vae = Codebook()
        self.encoder = nn.Sequential(
            *_down(1, 16),  # 0, 1: 64 -> 32
            *_down(16, 32),
            *_down(32, 64),
            *_down(64, _HIDDEN),  # 6, 7: 8 -> 4
            ResBlock(_HIDDEN),
            ResBlock(_HIDDEN),
            nn.Conv2d(_HIDDEN, CODE_DIM, 1),  # 10
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(CODE_DIM, _HIDDEN, 1),  # 0
            nn.ReLU(),
            ResBlock(_HIDDEN),
            ResBlock(_HIDDEN),
            *_up(_HIDDEN, 128),  # 4, 5: 4 -> 8
            *_up(128, 64),
            *_up(64, 32),
            *_up(32, 16),  # 10, 11: 32 -> 64
            nn.Conv2d(16, 1, 1),  # 12
        )

    def encode(self, masks_B1HW: Tensor) -> Tensor:
        """(B, 1, 64, 64) masks of −1 … 1 -> (B, 16) int64 codes, row by row."""
        vectors_BDhw = self.encoder(masks_B1HW)
        vectors_ND = vectors_BDhw.permute(0, 2, 3, 1).reshape(-1, CODE_DIM)
        return self._vq_vae.nearest(vectors_ND).view(-1, CODES_PER_MASK)

    def decode(self, codes_BL: Tensor) -> Tensor:
        """(B, 16) codes -> (B, 1, 64, 64) masks of about −1 … 1, foreground above 0."""
        rows_BLD = F.embedding(codes_BL, self._vq_vae._embedding)
        grid_BDhw = rows_BLD.view(-1, GRID_SIZE, GRID_SIZE, CODE_DIM).permute(0, 3, 1, 2)
        return self.decoder(grid_BDhw)


def _down(channels_in: int, channels_out: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(channels_in, channels_out, 4, stride=2, padding=1), nn.ReLU()


def _up(channels_in: int, channels_out: int) -> tuple[nn.Module, nn.Module]:
    return nn.ConvTranspose2d(channels_in, channels_out, 4, stride=2, padding=1), nn.ReLU()
