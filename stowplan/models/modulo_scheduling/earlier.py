"""A hint for one version of a loop body from a hint for an earlier one, as a build sees them: most instructions are the same.

Instructions are matched by what they are (:mod:`stowplan.models.earlier`), tiles by number. What has no counterpart
is left open, with a confidence of 0.
"""

from __future__ import annotations

from stowplan.models.earlier import Steps, carried, matched, trust
from stowplan.models.hint import Hint, check
from stowplan.models.modulo_scheduling.hint import TIME, hint, tile_name
from stowplan.models.modulo_scheduling.problem import Problem


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
    check(earlier, given)
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
        [-1 if operand.instruction is None else problem.number[operand.instruction] for operand in each.operands]
        for each in instructions
    ]
    return Steps(
        [each.id for each in instructions],
        [
            (each.op, len(each.operands), each.memory, tuple(operand.distance for operand in each.operands))
            for each in instructions
        ],
        [(each.op, each.memory) for each in instructions],
        sources,
    )
