"""Muon: momentum whose step is made orthogonal, for convolution kernels read as matrices.

After Keller Jordan, "Muon: an optimizer for hidden layers" (2024); the step is scaled as in
Liu et al., arXiv 2502.16982, so that Adam's learning rates fit. torch.optim.Muon takes matrices
only.
"""

import torch
from torch import Tensor

_QUINTIC = (3.4445, -4.7750, 2.0315)  # pushes all singular values towards 1


def orthogonalise(matrix: Tensor, steps: int = 5) -> Tensor:
    """Nearest (semi-)orthogonal matrix, roughly: (r, c) -> (r, c) with singular values near 1."""
    a, b, c = _QUINTIC
    x = matrix / (matrix.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised; each weight is flattened to (first axis, the rest)."""

    def __init__(self, params: list[torch.nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                average = state["momentum"].lerp_(weight.grad, 1 - group["momentum"])
                direction = weight.grad.lerp(average, group["momentum"]).reshape(len(weight), -1)
                scale = 0.2 * max(direction.shape) ** 0.5
                step = orthogonalise(direction).reshape(weight.shape)
                weight.add_(step, alpha=-group["lr"] * scale)
