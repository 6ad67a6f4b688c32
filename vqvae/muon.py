"""Muon: momentum whose step is made orthogonal, for convolution kernels read as matrices.

After Keller Jordan, "Muon: an optimizer for hidden layers" (2024); the step is scaled as in
Liu et al., arXiv 2502.16982, so that Adam's learning rates fit. torch.optim.Muon takes matrices
only.
"""

import torch
from torch import Tensor

_QUINTIC = (3.4445, -4.7750, 2.0315)  # pushes all singular values towards 1


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Nearest (semi-)orthogonal matrices, roughly: (N, r, c), with singular values near 1."""
    a, b, c = _QUINTIC
    x = matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised; each weight is flattened to (first axis, the rest).

    dtype: of the orthogonalisation. It forgives bfloat16, which is fast where the CPU has AMX.
    """

    def __init__(
        self, params: list[torch.nn.Parameter], lr: float, momentum: float = 0.95,
        dtype: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "momentum": momentum})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure=None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            alike: dict[tuple[int, int], list[tuple[torch.nn.Parameter, Tensor]]] = {}
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                average = state["momentum"].lerp_(weight.grad, 1 - group["momentum"])
                direction = weight.grad.lerp(average, group["momentum"]).reshape(len(weight), -1)
                rows, columns = direction.shape
                alike.setdefault((rows, columns), []).append((weight, direction))
            for shape, pairs in alike.items():  # matrices of one shape at once
                directions = torch.stack([direction for _, direction in pairs]).to(self.dtype)
                scale = 0.2 * max(shape) ** 0.5
                for (weight, _), step in zip(pairs, orthogonalise(directions), strict=True):
                    weight.add_(step.reshape(weight.shape), alpha=-group["lr"] * scale)
