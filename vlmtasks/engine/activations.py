"""The activation functions that a config may name."""

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.nn import functional as F

_BY_NAME: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    return _BY_NAME[name]
