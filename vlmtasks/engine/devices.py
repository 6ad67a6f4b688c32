"""Where a model computes, and in which kind of numbers."""

import torch

from vlmtasks.errors import InputError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(device: str | torch.device) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        probe = torch.zeros(1, device=device)
        probe.cpu()  # fails on "meta", which computes nothing
        return probe.device
    except (RuntimeError, TypeError, AssertionError) as error:
        raise InputError(
            f'device={device!r} cannot be used ({error}); allowed are "auto", "cpu", and "cuda", '
            '"cuda:1" … where there is such a device'
        ) from error


def resolve_dtype(dtype: str | torch.dtype) -> torch.dtype | None:
    """None for "auto"."""
    if dtype == "auto":
        return None
    found = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if found not in DTYPES.values():
        allowed = ", ".join(f'"{name}"' for name in ("auto", *DTYPES))
        raise InputError(f"dtype={dtype!r} is not supported; allowed: {allowed}")
    return found
