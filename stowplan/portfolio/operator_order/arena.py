"""Offsets for an order of operators: makes a packing problem of the tensors' live ranges, and plans from its solutions.

A *storage* is a tensor with bytes of its own, which views share. A result is written *in place* if it takes over the bytes of
an operand that no later operator needs. The *peak* of an order is the largest number of bytes that are live at the same time.
The *arena* of a plan is the memory that holds all storages at their offsets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from stowplan.models.operator_order.plan import Plan
from stowplan.models.operator_order.problem import Problem
from stowplan.models.operator_order.structure import Structure
from stowplan.models.packing import plan as packing_plan
from stowplan.models.packing import problem as packing
from stowplan.portfolio.packing.quick import quick_plan

T = TypeVar("T")

#: Largest common alignment, in bytes, of storages that share an offset. If their alignments have a larger least common
#: multiple, they get offsets of their own, so that multiples of it stay within 64 bits.
_MOST_ALIGNMENT = 1 << 40


class Lives:
    """The packing problem of an order, with one buffer for each chain of storages that are written in place of one another.

    Its attribute ``packing`` is this problem, which has no capacity. Its attribute ``peak`` is the peak of the order in bytes.

    Parameters
    ----------
    problem
        The problem.
    structure
        The problem as arrays (:func:`stowplan.models.operator_order.structure.build`).
    order
        The numbers of all operators, in an order in which they can run.
    """

    def __init__(self, problem: Problem, structure: Structure, order: Sequence[int]):
        self.problem, self.structure, self.order = problem, structure, order
        self.peak = structure.peak(order)
        begin, end = (moments.tolist() for moments in structure.lives(order))
        self._group = list(range(structure.storages))
        align = [problem.tensors[tensor].alignment for tensor in structure.tensor.tolist()]
        reused_places = structure.reused_storages(order)
        # The pairs are visited in the order of time, so that all storages of a chain get the number of its first storage.
        for one, other in sorted(reused_places, key=lambda pair: begin[pair[1]]):
            both = math.lcm(align[self._group[one]], align[other])
            if both <= _MOST_ALIGNMENT:
                self._group[other] = self._group[one]
                align[self._group[one]] = both
            else:
                # The result does not reuse the operand's bytes, so the operand lives until the operator has run.
                end[one] += 1
        lives: dict[int, tuple[int, int]] = {}
        for storage in np.flatnonzero(structure.is_there).tolist():
            if end[storage] > begin[storage] or self._group[storage] != storage:
                group = self._group[storage]
                low, high = lives.get(group, (begin[storage], end[storage]))
                lives[group] = min(low, begin[storage]), max(high, end[storage])
        self._groups = list(lives)
        self.packing = packing.Problem(
            name=problem.name,
            buffers=tuple(
                packing.Buffer(
                    id=problem.tensors[int(structure.tensor[group])].id,
                    lower=low,
                    upper=high,
                    size=int(structure.size[group]),
                    alignment=align[group],
                )
                for group, (low, high) in lives.items()
            ),
        )

    def plan(self, offsets: Sequence[int]) -> Plan:
        """The plan with these offsets in bytes, one for each buffer of ``packing``.

        Storages that are never live get offset 0. Raises ValueError if the number of offsets is not that of the buffers.
        """
        at = dict(zip(self._groups, offsets, strict=True))
        storages = dict(zip(self.structure.tensor.tolist(), (at.get(group, 0) for group in self._group), strict=True))
        buffers = self.packing.buffers
        return Plan(
            problem=self.problem.digest,
            objective=self.peak,
            arena=max((offset + buffer.size for offset, buffer in zip(offsets, buffers, strict=True)), default=0),
            order=tuple(self.order),
            offsets=tuple(storages[base] for base in self.problem.base),
        )

    def offsets(self, plan: Plan) -> packing_plan.Plan:
        """The offsets of a plan with this order, as a plan of ``packing``."""
        offsets = tuple(self.of_buffers(plan.offsets))
        return packing_plan.Plan(problem=self.packing.digest, objective=plan.arena, offsets=offsets)

    def of_buffers(self, values: Sequence[T]) -> list[T]:
        """For each buffer of ``packing``, the entry that ``values``, with one entry for each tensor, has for its first
        storage."""
        return [values[int(self.structure.tensor[group])] for group in self._groups]

    def quick(self, should_stop: Callable[[], bool] = lambda: False) -> Plan:
        """A plan with this order, and with offsets that a quick heuristic finds within milliseconds.

        ``should_stop`` must not return True before the offsets are found, and there must be at most 200,000 buffers;
        otherwise AssertionError is raised.
        """
        packed = quick_plan(self.packing, should_stop)
        assert packed is not None  # Without a capacity and fixed offsets there is always a plan, except for too many buffers.
        return self.plan(packed[1].offsets)
