"""What recurrences ask of places before all of them is placed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from stowplan.learned_guidance.modulo_scheduling.state import Mapping
from tests.learned_guidance.modulo_scheduling.graphs import chain


def completes(mapping: Mapping) -> bool:
    """Whether some way leads to a complete mapping, by trying all."""
    if mapping.current < 0:
        return True
    for tile, slot in np.argwhere(mapping.mask()):
        after = mapping.copy()
        after.place(int(tile), int(slot))
        if completes(after):
            return True
    return False


@pytest.mark.parametrize(("count", "ii"), [(2, 7), (3, 10)])
def test_masks_leave_out_dead_ends_alone(count: int, ii: int) -> None:
    problem = chain(count, back=1)
    ahead, blind = Mapping(problem, ii), Mapping(problem, ii, look_ahead=False)
    ahead.place(0, 0)
    blind.place(0, 0)
    fewer = 0
    for tile, slot in itertools.product(range(4), range(ii)):
        if not blind.mask()[tile, slot]:
            assert not ahead.mask()[tile, slot]
            continue
        after = blind.copy()
        after.place(tile, slot)
        if ahead.mask()[tile, slot]:
            assert completes(after), (tile, slot)
        else:
            fewer += 1
            assert not completes(after), (tile, slot)
    assert fewer or count == 2
