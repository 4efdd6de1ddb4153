"""Turns plans of heuristics, exact models or compilers into games of MMapGame, from which an agent can learn by imitation.

A plan determines for every use whether it is fast, where its content comes from and whether it is copied out; each move has one
action with the same meaning (:func:`suggest_action`). Offsets and copy windows are chosen by the game. A suggestion may
therefore be illegal, and then the nearest legal action is played. Features that the game does not have are lost: preloads, a
second channel, and copies that stall.

A visit that overwrites its tensor completely is one *output move*. Any other visit is an *input move* for its reads and, if it
writes, also an output move for its writes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame, CompiledState
from stowplan.learned_guidance.memory_mapping.game.game import Action, Move
from stowplan.models.memory_mapping.plan import Plan, Residency
from stowplan.models.memory_mapping.problem import Problem

Preference = tuple[Action, Action, Action]
"""The actions of a move in the order of preference."""

#: The actions to try for each suggestion: if it is illegal, first another fast action, then the slow one.
ORDERS: dict[Action, Preference] = {
    Action.COPY: (Action.COPY, Action.NOCOPY, Action.DROP),
    Action.NOCOPY: (Action.NOCOPY, Action.COPY, Action.DROP),
    # Drop is illegal only if slow memory does not have the content, which then is still in fast memory.
    Action.DROP: (Action.DROP, Action.NOCOPY, Action.COPY),
}


@dataclass(frozen=True)
class Demonstration:
    """A finished game that follows a plan."""

    actions: tuple[Action, ...]
    """One action for each move. All of them are legal, also without Drop-backup, and none leads to an infeasible state."""
    return_ps: int
    """Return of the game (ps)."""


def actions_of(problem: Problem, plan: Plan, game: CompiledGame | None = None) -> Demonstration:
    """The game that is closest to a valid plan.

    The game deviates from the plan if the action is illegal. It also does so for an input move whose content is in fast memory
    already and stays there for the whole visit: NoCopy then occupies no more memory, and is chosen if it costs no time.
    Visits that also write and that the plan serves from slow memory are an exception.

    Parameters
    ----------
    problem
        A problem.
    plan
        A valid plan of ``problem``.
    game
        A game on ``problem``, if there is one already.

    Returns
    -------
    Demonstration
        The game. Its return may be more or less than the time that the plan saves.
    """
    game = CompiledGame(problem) if game is None else game
    suggestions = suggest_action(problem, plan, game.moves)
    state = game.reset()
    while not state.is_over:
        state.step(_choose(state, suggestions[state.position]))
    return Demonstration(state.actions, state.return_ps)


def suggest_action(problem: Problem, plan: Plan, moves: Sequence[Move]) -> tuple[Action, ...]:
    """For each move, the action that corresponds to the plan, legal or not."""
    reader = _Reader(problem, plan)
    return tuple(reader.output(move) if move.is_output else reader.input(move) for move in moves)


def _choose(state: CompiledState, suggestion: Action) -> Action:
    """The suggestion or the nearest legal action; or NoCopy, if that occupies no more fast memory and costs no time."""
    legal, move = state.legal, state.game.moves[state.position]
    # The input and the output move of a visit must both be fast or both be slow. If the plan serves such a visit from slow
    # memory, a fast read would force the write to be fast as well.
    if legal[Action.NOCOPY] and not move.is_output and not (move.has_output and suggestion == Action.DROP):
        start, end, _ = state.placements[Action.NOCOPY]
        if start == end and state.benefit_ps >= 0:
            return Action.NOCOPY
    return next(action for action in ORDERS[suggestion] if legal[action])


class _Reader:
    """Finds out how a plan serves the uses of a move."""

    def __init__(self, problem: Problem, plan: Plan):
        count = len(problem.tensors)
        self._fast = frozenset(plan.fast_uses)
        self._homes: list[list[Residency]] = [[] for _ in range(count)]
        """Residencies of each tensor, by their start."""
        self._outs: list[list[int]] = [[] for _ in range(count)]
        """Ends of the copies-out of each tensor, ascending."""
        self._fast_steps: list[list[int]] = [[] for _ in range(count)]
        """Steps of the fast uses of each tensor, ascending."""
        for residency in sorted(plan.residencies, key=lambda residency: residency.start):
            self._homes[residency.tensor].append(residency)
        for copy in sorted(plan.copies, key=lambda copy: copy.end):
            if copy.direction == "out":
                self._outs[copy.tensor].append(copy.end)
        number = 0
        for index, step in enumerate(problem.steps):
            for use in step.uses:
                if number in self._fast:
                    self._fast_steps[use.tensor].append(index)
                number += 1

    def input(self, move: Move) -> Action:
        """The action of an input move. It is Drop if the uses are slow, NoCopy if the plan has used the content in the same
        residency before, and Copy if the content is copied in."""
        steps = self._fast_steps[move.tensor]
        # All fast uses count, not only reads: the input move of a visit that only writes a part of the tensor has no reads.
        first = bisect_left(steps, move.start)
        if first == len(steps) or steps[first] >= move.end:
            return Action.DROP
        home = self._home(move.tensor, steps[first])
        return Action.NOCOPY if first and home is not None and home.start <= steps[first - 1] else Action.COPY

    def output(self, move: Move) -> Action:
        """The action of an output move. It is Drop if the uses are slow, Copy if the content is copied out before it is
        overwritten, and NoCopy if it is not copied out."""
        if not any(use in self._fast for use in move.uses):
            return Action.DROP
        ends = self._outs[move.tensor]
        copied = bisect_left(ends, move.end) < bisect_right(ends, move.copy_out_limit)
        return Action.COPY if copied else Action.NOCOPY

    def _home(self, tensor: int, step: int) -> Residency | None:
        """The residency of a tensor at a step; None if it has none."""
        homes = self._homes[tensor]
        place = bisect_right(homes, step, key=lambda residency: residency.start) - 1
        return homes[place] if place >= 0 and homes[place].end > step else None
