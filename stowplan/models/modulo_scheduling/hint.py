"""Hints for modulo scheduling: for each instruction how early it issues, and how much speaks for each tile.

Values are named ``time`` (0 for the first issue of an iteration, 1 for the last) and ``tile N`` for each tile of the machine,
by its number. Instructions are in the problem's order.
"""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.models.hint import Hint, of_values
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem

TIME = "time"


def tile_name(tile: int) -> str:
    """Name of the values of a tile."""
    return f"tile {tile}"


def counts(problem: Problem) -> dict[str, int]:
    """How many values of each name a hint has: one for each instruction."""
    return dict.fromkeys((TIME, *map(tile_name, range(problem.machine.tiles))), len(problem.instructions))


def hint(
    problem: Problem,
    time: Sequence[float],
    tiles: Sequence[Sequence[float]],
    *,
    confidence: Sequence[float] = (),
    plan: Plan | None = None,
    source: str = "",
) -> Hint:
    """A hint of values for a problem: ``time`` of shape ``[instructions]``, ``tiles`` ``[tiles, instructions]``, in [0, 1]."""
    values = {TIME: time} | {tile_name(tile): row for tile, row in zip(range(problem.machine.tiles), tiles, strict=True)}
    return of_values(problem, values, confidence=confidence, plan=plan, source=source)


def of_plan(problem: Problem, plan: Plan, source: str = "plan") -> Hint:
    """The values that a valid plan has, and the plan itself."""
    last = max(1, *plan.times) if plan.times else 1
    tiles = [[float(at == tile) for at in plan.tiles] for tile in range(problem.machine.tiles)]
    return hint(problem, [time / last for time in plan.times], tiles, plan=plan, source=source)
