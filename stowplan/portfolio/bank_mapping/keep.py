"""Ways to choose what stays on chip once every operator has its option."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stowplan.models.bank_mapping.problem import Problem
from stowplan.models.bank_mapping.structure import copies_of, off_chip_cost, on_chip_cost, own_layouts


class _Load:
    """Bytes on chip at every operator."""

    def __init__(self, problem: Problem):
        self._problem = problem
        self._bytes = np.zeros(len(problem.operators), np.int64)

    def take(self, life: tuple[int, int], size: int) -> bool:
        """Room for ``size`` bytes over a life, if there is."""
        part = self._bytes[life[0] : life[1]]
        if size and int(part.max(initial=0)) + size > self._problem.capacity:
            return False
        part += size
        return True


def _sizes(problem: Problem, options: Sequence[int]) -> list[tuple[int, int]]:
    """For each tensor (bytes on chip with its copies, weighted bytes saved by staying)."""
    layouts = own_layouts(problem, options)
    found = []
    for tensor, each in enumerate(problem.tensors):
        copied = sum(each.layout_bytes(layout) for layout in copies_of(problem, tensor, layouts[tensor], options))
        saved = off_chip_cost(problem, tensor) - on_chip_cost(problem, tensor) - problem.copy_weight * copied
        found.append((each.bytes + copied, saved))
    return found


def by_density(problem: Problem, options: Sequence[int], preferred: Sequence[float] | None = None) -> list[bool]:
    """What saves most for its bytes and the length of its life first, as long as there is room.

    ``preferred`` says how much each tensor should stay, from another source, and goes before that.
    """
    sizes = _sizes(problem, options)
    stays = [False] * len(problem.tensors)
    load = _Load(problem)
    lives = [problem.life(tensor) for tensor in range(len(problem.tensors))]

    def density(tensor: int) -> float:
        life = lives[tensor]
        assert life is not None
        return sizes[tensor][1] / (max(1, sizes[tensor][0]) * (life[1] - life[0]))

    candidates = [tensor for tensor, life in enumerate(lives) if life is not None and sizes[tensor][1] > 0]
    wish = preferred or [0.0] * len(problem.tensors)
    for tensor in sorted(candidates, key=lambda each: (-round(wish[each], 2), -density(each), each)):
        life = lives[tensor]
        stays[tensor] = life is not None and load.take(life, sizes[tensor][0])
    return stays


def next_only(problem: Problem, options: Sequence[int]) -> list[bool]:
    """Local mapping's rule: an output stays if the operator right after its writer reads it, and there is room."""
    sizes = _sizes(problem, options)
    stays = [False] * len(problem.tensors)
    load = _Load(problem)
    for number, operator in enumerate(problem.operators):
        for tensor in operator.writes:
            life = problem.life(tensor)
            if problem.writers[tensor][-1] != number or life is None:
                continue
            if any(reader == number + 1 for reader, _ in problem.readers[tensor]):
                stays[tensor] = load.take(life, sizes[tensor][0])
    return stays
