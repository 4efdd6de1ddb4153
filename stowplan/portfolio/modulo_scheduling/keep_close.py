"""Modulo schedules that differ as little as possible from an earlier plan.

The option ``--keep-close`` names the earlier plan, which may be for an earlier version of the problem. Instructions are then
matched by what they compute, and tiles (processing elements) by their numbers. *II* is the initiation interval, the number of
clocks from the start of one iteration to the start of the next. A *route* is the links that a value takes from tile to tile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from stowplan.kernel.keep_close.earlier_plan import ByValues, is_of_problem, needs_program
from stowplan.kernel.plan_changes import Budget, KeepClose
from stowplan.models.modulo_scheduling.assemble import link_between, make_plan
from stowplan.models.modulo_scheduling.hint import matched_instructions
from stowplan.models.modulo_scheduling.plan import Plan, encode_objective
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.models.modulo_scheduling.structure import Structure


class Changes(ByValues):
    """Implements :class:`~stowplan.kernel.plan_changes.PlanChanges` for modulo scheduling.

    There is one decision for each instruction: its tile and its time, the clock at which it is issued in the first iteration.
    The decision's number is that of the instruction. The other parts of a plan follow from the tiles and times: routes, delays
    of values, and the *start instructions*, which the hardware starts at a set time. The constructor raises UsageError as
    :meth:`match_values` does.
    """

    what = "instruction"

    def __init__(self, problem: Problem, given: KeepClose):
        self._structure = Structure(problem)
        self._whole: Plan | None = given.plan if is_of_problem(problem, given) else None
        super().__init__(problem, given)

    def match_values(self, given: KeepClose) -> Sequence[tuple[int, int] | None]:
        """The tile and time of each instruction in a plan of an earlier version; None for an instruction that it does not have.

        Instructions are matched by what they compute if the earlier version of the problem is given, otherwise by their ids.

        Raises
        ------
        UsageError
            The earlier version is not given, and the plan does not have the ids of its instructions.
        """
        earlier: Plan = given.plan
        if given.problem is not None:
            before = matched_instructions(self.problem, given.problem)
        elif len(earlier.instructions) == len(earlier.tiles):
            number = {name: at for at, name in enumerate(earlier.instructions)}
            before = [number.get(instruction.id, -1) for instruction in self.problem.instructions]
        else:
            raise needs_program("modulo scheduling")
        values = self.values(earlier)
        return [values[at] if at >= 0 else None for at in before]

    def values(self, plan: Any) -> Sequence[tuple[int, int]]:
        """Tile and time (in clocks) of each instruction in a plan."""
        return list(zip(plan.tiles, plan.times, strict=True))

    def plan(self, values: Sequence[Any], near: Any) -> Plan | None:
        """The plan with the tiles and times ``values`` at the II of ``near``; None if there is no valid one.

        Values between unchanged tiles keep their routes.
        """
        # Routes of an earlier version of the problem belong to other values.
        like = [plan for plan in (self._whole, near) if plan is not None and plan.problem == self.problem.digest]
        return self._build_plan(near.ii, values, like)

    def improved(self, plan: Any, budget: Budget, ceiling: int) -> Iterable[Plan]:
        """Yields the closest plan of the same II that an exact model finds within the budget, if any.

        Its objective is at most ``ceiling``, or that of ``plan`` if that is more.
        """
        limits = budget.solver_limits()
        if limits is None or not self.differing(plan):
            return
        from stowplan.models.modulo_scheduling.cpsat.questions import literals, solve_closest

        if not budget.has_room(literals(self._structure, plan.ii)):
            return

        makespan = max(plan.makespan, ceiling - encode_objective(plan.ii, 0))
        outcome = solve_closest(self._structure, self.earlier, plan, makespan, **limits)
        if outcome is not None:
            closest = self.plan(self.values(outcome), outcome)
            yield outcome if closest is None else closest

    def _build_plan(self, ii: int, values: Sequence[Any], like: Sequence[Plan]) -> Plan | None:
        """The plan with these tiles and times; None if it would not be valid.

        A value whose two tiles are those of a plan of ``like`` has the route of that plan. The start instructions are those of
        the first plan of ``like`` whose start instructions are all on different tiles.
        """
        problem = self._structure.problem
        tiles = [tile for tile, _ in values]
        if any(tile >= problem.machine.tiles for tile in tiles):
            return None
        try:
            routes = [self._route(number, tiles, like) for number in range(len(problem.edges))]
        except ValueError:  # no link between two of the tiles
            return None
        plan = make_plan(self._structure, ii, tiles, [time for _, time in values], routes)
        for other in like:
            if plan is not None and len({tiles[instruction] for instruction in other.starts}) == len(other.starts):
                return msgspec.structs.replace(plan, starts=other.starts)
        return plan

    def _route(self, number: int, tiles: Sequence[int], like: Sequence[Plan]) -> tuple[int, ...]:
        """Returns the route of an edge, which is a value, by its number.

        It is the route in a plan of ``like`` with the same two tiles, otherwise the direct link between them.

        Raises ValueError if there is no direct link.
        """
        edge = self._structure.problem.edges[number]
        for other in like:
            if all(other.tiles[end] == tiles[end] for end in (edge.source, edge.target)):
                return other.routes[number]
        return () if edge.asynchronous else link_between(self._structure.problem, tiles[edge.source], tiles[edge.target])
