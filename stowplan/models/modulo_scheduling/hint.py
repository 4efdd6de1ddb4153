"""Hints for modulo scheduling: for each instruction how early it issues, and how much speaks for each tile.

Values are named ``time`` (0 for the first issue of an iteration, 1 for the last) and ``tile N`` for each tile of the machine,
by its number. Instructions are in the problem's order.

From a hint for an earlier version comes one for the version at hand: instructions are matched by what they are
(:mod:`stowplan.models.hint`), tiles by number. What has no counterpart is left open, with a confidence of 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.models.hint import Hint, HintValues, Steps, carried, check_hint, matched, of_values, trust
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


def transferred(problem: Problem, earlier: Problem, given: Hint) -> Hint:
    """The hint for a loop body that a hint for an earlier version of it stands for.

    Parameters
    ----------
    problem
        What is to be solved.
    earlier
        The version that the hint is for.
    given
        With values, for ``earlier``; its plan is left behind.

    Raises
    ------
    InputError, UsageError
        The hint is not for the earlier version.
    """
    check_hint(earlier, given, VALUES)
    numbers = [None if number < 0 else number for number in matched_instructions(problem, earlier)]
    tiles = [carried(given, tile_name(tile), numbers, 0.0) for tile in range(problem.machine.tiles)]
    time = carried(given, TIME, numbers, 0.5)
    return hint(problem, time, tiles, confidence=trust(given, numbers), source=given.source)


def matched_instructions(problem: Problem, earlier: Problem) -> list[int]:
    """For each instruction the one of an earlier version that it was, -1 for none; shape ``[instructions]``."""
    return matched(_steps(problem), _steps(earlier))


def _steps(problem: Problem) -> Steps:
    instructions = problem.instructions
    sources = [
        [-1 if operand.instruction is None else problem.number[operand.instruction] for operand in instruction.operands]
        for instruction in instructions
    ]
    return Steps(
        [instruction.id for instruction in instructions],
        [
            (
                instruction.op,
                len(instruction.operands),
                instruction.memory,
                tuple(operand.distance for operand in instruction.operands),
            )
            for instruction in instructions
        ],
        [(instruction.op, instruction.memory) for instruction in instructions],
        sources,
    )


#: What hints for this kind may say.
VALUES = HintValues(counts, of_plan, transferred)
