"""A random number generator for code that Numba compiles; the numbers are the same if the code is interpreted."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stowplan.compiled import njit_inner


@njit_inner
def random_below(chance: npt.NDArray[np.int64], below: int) -> int:
    """A random number from 0 to ``below - 1``, by the xorshift method.

    ``chance``, an array with one element, is the state of the generator. The state must not be 0; the call advances it.
    """
    x = chance[0]
    x ^= (x << 13) & 0x7FFFFFFFFFFFFFFF
    x ^= x >> 7
    x ^= (x << 17) & 0x7FFFFFFFFFFFFFFF
    chance[0] = x
    return int((x >> 8) % below)
