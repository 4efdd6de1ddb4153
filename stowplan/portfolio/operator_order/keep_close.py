"""Operator orders that differ as little as possible from an earlier plan.

The option ``--keep-close`` names the earlier plan, which may be for an earlier version of the problem. Operators and tensors
are then matched by their ids. A plan is an order of the operators and an offset for each tensor. The *peak* of an order is the
largest number of bytes that are live at the same time, and the *arena* is the memory that holds all tensors at their offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from stowplan.kernel.keep_close.earlier_plan import count_changes, is_of_problem, needs_program
from stowplan.kernel.plan_changes import Budget, Counts, KeepClose
from stowplan.models.operator_order.plan import Plan, in_order
from stowplan.models.operator_order.problem import Problem
from stowplan.models.operator_order.structure import build, needed_first
from stowplan.portfolio.operator_order.arena import Lives
from stowplan.portfolio.packing.keep_close import near_offsets, offsets_by_ejection, with_capacity


class Changes:
    """Implements :class:`~stowplan.kernel.plan_changes.PlanChanges` for operator order.

    A decision is the position of an operator relative to the others; its number is that of the operator. Offsets of tensors are
    no decisions: they depend on the live ranges that result from an order, and are chosen after it.

    Parameters
    ----------
    problem
        The problem to solve.
    given
        The checked request with the earlier plan.

    Raises
    ------
    UsageError
        The earlier plan is for another problem, and that problem is not given.
    """

    notes: Sequence[str] = ()
    """Empty: operators and tensors that only the earlier plan has are ignored without a remark."""

    def __init__(self, problem: Problem, given: KeepClose):
        self._problem, self._structure = problem, build(problem)
        earlier: Plan = given.plan
        self._should_stop: Callable[[], bool] = lambda: False
        self._is_of_this = is_of_problem(problem, given)
        self._order: list[int] = list(earlier.order)
        self._offsets: list[int | None] = list(earlier.offsets)
        #: The earlier plan as a plan of this problem. It may be invalid if the plan is for this problem but breaks its rules.
        self.start: Any = earlier
        if not self._is_of_this:
            if given.problem is None:
                raise needs_program("operator order")
            number = {op.id: at for at, op in enumerate(problem.ops)}
            ids = [given.problem.ops[at].id for at in earlier.order]
            self._order = [number[name] for name in ids if name in number]
            offsets = {tensor.id: at for tensor, at in zip(given.problem.tensors, earlier.offsets, strict=True)}
            self._offsets = [offsets.get(tensor.id) for tensor in problem.tensors]
            new = sorted({*range(len(problem.ops))} - {*self._order})
            # New operators run right before the first operator that depends on them, or last if none does.
            self.start = self._with_offsets(needed_first(self._structure, [*self._order, *new]), None)

    def counts(self, plan: Any) -> Counts:
        """How many operators moved, and how many tensors have another offset than in the earlier plan.

        Each number is in a pair with the number of operators or tensors that both plans have.
        """
        if self._is_of_this:
            return count_changes(self._problem, self.start, plan)
        comparable = [(before, after) for before, after in zip(self._offsets, plan.offsets, strict=True) if before is not None]
        return {
            "operator": (len(self._find_moved(plan)), len(self._order)),
            "tensor": (sum(before != after for before, after in comparable), len(comparable)),
        }

    def groups(self, plan: Any, should_stop: Callable[[], bool]) -> list[frozenset[int]]:
        """The moved operators. Each is a set of its own, since one operator can be moved back without others.

        The list is empty if none moved. ``should_stop`` is kept for later calls of :meth:`reverted`.
        """
        self._should_stop = should_stop
        return [frozenset([operator]) for operator in self._find_moved(plan)]

    def reverted(self, plan: Any, decisions: Collection[int]) -> Plan | None:
        """The plan with these operators moved back, each to the position right after the operator that it followed in the
        earlier plan.

        Operators on which they depend are moved as well, if they would otherwise run too late. Returns None if the peak would
        exceed the plan's arena.
        """
        back = set(decisions)
        order = [op for op in plan.order if op not in back]
        before: int | None = None
        for op in self._order:
            if op in back:
                order.insert(0 if before is None else order.index(before) + 1, op)
            before = op
        return self._with_offsets(needed_first(self._structure, order), plan.arena)

    def improved(self, plan: Any, budget: Budget, ceiling: int) -> Iterable[Plan]:
        """Yields plans of the same order with fewer changed offsets, in an arena of at most ``ceiling`` bytes."""
        lives = Lives(self._problem, self._structure, plan.order)
        problem = with_capacity(lives.packing, ceiling)
        for offsets in near_offsets(problem, lives.of_buffers(self._offsets), lives.offsets(plan).offsets, budget):
            yield lives.plan(offsets)

    def _find_moved(self, plan: Any) -> list[int]:
        """The operators that moved: a smallest set such that all others have the same relative order in both plans.

        Operators that the earlier plan does not have are ignored.
        """
        earlier = {*self._order}
        unmoved = in_order(self._order, [op for op in plan.order if op in earlier])
        return [op for op in self._order if op not in unmoved]

    def _with_offsets(self, order: list[int], ceiling: int | None) -> Plan | None:
        """A plan of this order, with offsets close to the earlier ones. Returns None if the peak exceeds ``ceiling``.

        A heuristic starts with the earlier offsets, and changes those of tensors that overlap or do not fit into ``ceiling``
        bytes. If it finds no offsets, or if ``ceiling`` is None, the earlier offsets are disregarded, and the arena may be
        larger than ``ceiling``.
        """
        lives = Lives(self._problem, self._structure, order)
        if ceiling is None:
            return lives.quick()
        if lives.peak > ceiling:
            return None
        offsets = offsets_by_ejection(with_capacity(lives.packing, ceiling), lives.of_buffers(self._offsets), self._should_stop)
        return lives.quick() if offsets is None else lives.plan(offsets)
