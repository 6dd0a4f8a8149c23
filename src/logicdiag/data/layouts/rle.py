"""Run-length masks of COCO, decoded: columns first, runs of zeros and ones in turn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def decode(counts: str | bytes | Sequence[int], height: int, width: int) -> NDArray[np.bool_]:
    """
    >>> decode([1, 2, 1], 2, 2).astype(int)
    array([[0, 1],
           [1, 0]])
    >>> decode("121", 2, 2).tolist() == decode([1, 2, 1], 2, 2).tolist()
    True

    A ValueError if the runs do not fill the mask.
    """
    runs = np.asarray(uncompress(counts) if isinstance(counts, (str, bytes)) else counts, dtype=np.int64)
    if (runs < 0).any() or int(runs.sum()) != height * width:
        raise ValueError(f"its runs sum to {int(runs.sum())} pixels, and the image has {height} x {width}")
    mask: NDArray[np.bool_] = np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(width, height).T
    return mask


def uncompress(text: str | bytes) -> list[int]:
    """The runs of a compressed string: 5 bits to a character, low ones first; from the fourth run on, each is
    written as its difference from the run before the last.

    >>> uncompress("121"), uncompress("PQ1")
    ([1, 2, 1], [1056])
    """
    data = text.encode("ascii") if isinstance(text, str) else text
    runs: list[int] = []
    value = shift = 0
    for byte in data:
        byte -= 48
        value |= (byte & 31) << shift
        shift += 5
        if byte & 32:
            continue
        if byte & 16:
            value -= 1 << shift  # the sign
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
    if shift:
        raise ValueError("its compressed runs end too early")
    return runs
