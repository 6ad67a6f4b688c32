"""Which objects of a result an index means."""

import operator
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmtasks.errors import InputError
from vlmtasks.shorten import shorten


def chosen_places(index: Any, count: int) -> "int | NDArray[np.intp]":
    """The place of one object of `count`, or the places of some, from 0.

    index: a whole number; a slice; a list, tuple, array or tensor of whole numbers or of `count`
        truth values. IndexError: out of range. InputError: anything else.
    """
    if isinstance(index, slice):
        return np.arange(count)[index]
    is_list = isinstance(index, Sequence) and not isinstance(index, str)
    if is_list or getattr(index, "ndim", 0) == 1:  # torch's tensors, too
        array = np.asarray(index)
        if array.size == 0:
            return np.arange(0)
        if array.ndim == 1 and array.dtype.kind in "iub":
            return np.arange(count)[array]
    elif not isinstance(index, bool | np.bool_):
        with suppress(TypeError):  # a str, a fraction
            return int(np.arange(count)[operator.index(index)])  # pyright: ignore[reportArgumentType]
    raise InputError(
        f"index is {shorten(index)}; it must be a whole number, a slice, or a list of whole "
        "numbers or of a truth value for each object"
    )
