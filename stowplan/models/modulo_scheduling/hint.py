"""Hints for modulo scheduling: for each instruction when it is issued, and how good each tile is for it.

Values are named ``time`` (0 for the first issue of an iteration, 1 for the last) and ``tile N`` for each tile, by its number.
Instructions are in the problem's order.

A hint for an earlier version of a loop body can be transferred to the current version. Instructions are then matched by their
properties (:mod:`stowplan.models.hint`) and tiles by number. Instructions without a counterpart get confidence 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.models.hint import Hint, HintValues, Steps, carried, check_hint, matched, of_values, trust
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem

TIME = "time"


def tile_name(tile: int) -> str:
    """Name of the values for a tile."""
    return f"tile {tile}"


def counts(problem: Problem) -> dict[str, int]:
    """Number of values of each name in a hint: one for each instruction."""
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
    """A hint for a problem with values in [0, 1]: ``time`` of shape ``[instructions]``, ``tiles`` ``[tiles, instructions]``."""
    values = {TIME: time} | {tile_name(tile): row for tile, row in zip(range(problem.machine.tiles), tiles, strict=True)}
    return of_values(problem, values, confidence=confidence, plan=plan, source=source)


def of_plan(problem: Problem, plan: Plan, source: str = "plan") -> Hint:
    """A hint that contains a valid plan and the values that correspond to it."""
    last = max(1, *plan.times) if plan.times else 1
    tiles = [[float(at == tile) for at in plan.tiles] for tile in range(problem.machine.tiles)]
    return hint(problem, [time / last for time in plan.times], tiles, plan=plan, source=source)


def transferred(problem: Problem, earlier: Problem, given: Hint) -> Hint:
    """Transfer a hint from an earlier version of a loop body to the current one.

    Parameters
    ----------
    problem
        The current version.
    earlier
        The version that the hint is for.
    given
        A hint with values for ``earlier``. Its plan is not transferred.

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
    """[instructions] the corresponding instruction of an earlier version; -1 for none."""
    return matched(_steps(problem), _steps(earlier))


def _steps(problem: Problem) -> Steps:
    """The instructions of a problem as steps to be matched."""
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


#: The values that hints for modulo scheduling may have.
VALUES = HintValues(counts, of_plan, transferred)
