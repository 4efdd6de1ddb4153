"""Hints for modulo scheduling: for each instruction the time at which it is issued, and how good each tile is for it.

The list of values ``time`` has numbers from 0, for the first issue of an iteration, to 1 for the last. For each tile, the list
``tile N`` says how good tile N is for each instruction. Instructions are in the problem's order.

A hint for an earlier version of a loop body can be transferred to the current version. Instructions are then matched by their
properties (:mod:`stowplan.models.hint`) and tiles by number. Instructions without a counterpart get confidence 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.models.hint import Hint, HintValues, Steps, carried, check_hint, matched, of_values, trust
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem

#: Name of the list of times.
TIME = "time"


def tile_name(tile: int) -> str:
    """Name of the list of values for a tile."""
    return f"tile {tile}"


def counts(problem: Problem) -> dict[str, int]:
    """The number of values that a hint has under each name: one for each instruction."""
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
    """Build a hint from values in [0, 1]: ``time`` of shape ``[instructions]``, and ``tiles`` of shape
    ``[tiles, instructions]``.

    ``confidence`` has a number in [0, 1] for each instruction, which says how reliable its values are; empty for full
    confidence. ``plan`` is part of the hint unless it is None. Nothing is checked, except that ``tiles`` has a row for each
    tile: otherwise ValueError is raised.
    """
    values = {TIME: time} | {tile_name(tile): row for tile, row in zip(range(problem.machine.tiles), tiles, strict=True)}
    return of_values(problem, values, confidence=confidence, plan=plan, source=source)


def of_plan(problem: Problem, plan: Plan, source: str = "plan") -> Hint:
    """Build a hint that contains a valid plan and the values that correspond to it.

    ``source`` names the origin of the plan, for people.
    """
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
    InputError
        The hint is not for the earlier version, or its values are not valid.
    UsageError
        ``earlier`` is not a problem.
    """
    check_hint(earlier, given, VALUES)
    numbers = [None if number < 0 else number for number in matched_instructions(problem, earlier)]
    tiles = [carried(given, tile_name(tile), numbers, 0.0) for tile in range(problem.machine.tiles)]
    time = carried(given, TIME, numbers, 0.5)
    return hint(problem, time, tiles, confidence=trust(given, numbers), source=given.source)


def matched_instructions(problem: Problem, earlier: Problem) -> list[int]:
    """For each instruction, the corresponding instruction of an earlier version, or -1; shape ``[instructions]``."""
    return matched(_steps(problem), _steps(earlier))


def _steps(problem: Problem) -> Steps:
    """The instructions of a problem as steps in the form for matching."""
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


#: The lists of values that hints for modulo scheduling may have.
VALUES = HintValues(counts, of_plan, transferred)
