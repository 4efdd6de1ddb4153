"""Plans of others as games of MMapGame: a heuristic's, an exact model's or a compiler's plan shows a learner how to play.

A plan says of every use whether it is fast, where its content comes from and whether it is copied out; each move has one
action that says the same (:func:`suggested`). Offsets and copy windows are the game's own, so now and then the suggestion is
not legal, and the nearest action that is takes its place. What the game does not have is lost: preloads, a second channel,
copies that stall.
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
"""The actions of a move, the most wanted first."""

#: What each suggestion becomes where it is not legal: fast some other way before slow.
ORDERS: dict[Action, Preference] = {
    Action.COPY: (Action.COPY, Action.NOCOPY, Action.DROP),
    Action.NOCOPY: (Action.NOCOPY, Action.COPY, Action.DROP),
    # Only where slow memory lacks the content, and then it still is in fast memory.
    Action.DROP: (Action.DROP, Action.NOCOPY, Action.COPY),
}


@dataclass(frozen=True)
class Demonstration:
    """A whole game that follows a plan."""

    actions: tuple[Action, ...]
    """One for each move; all are legal, also without Drop-backup, and no move leads to an infeasible state."""
    return_ps: int
    """Return of the game."""


def actions_of(problem: Problem, plan: Plan, game: CompiledGame | None = None) -> Demonstration:
    """The game that comes nearest to a valid plan.

    A move that keeps what the game holds anyway is free, and is made where it pays, whatever the plan does.

    Parameters
    ----------
    plan
        Valid for ``problem``.
    game
        One on ``problem``, where there is one already.

    Returns
    -------
    Demonstration
        Its return may be more or less than what the plan saves.
    """
    game = CompiledGame(problem) if game is None else game
    suggestions = suggested(problem, plan, game.moves)
    state = game.reset()
    while not state.is_over:
        state.step(_choose(state, suggestions[state.position]))
    return Demonstration(state.actions, state.return_ps)


def suggested(problem: Problem, plan: Plan, moves: Sequence[Move]) -> tuple[Action, ...]:
    """For each move the action that says what the plan does, legal or not."""
    reader = _Reader(problem, plan)
    return tuple(reader.output(move) if move.is_output else reader.input(move) for move in moves)


def _choose(state: CompiledState, suggestion: Action) -> Action:
    """The suggestion or what is nearest to it, but for what costs nothing."""
    legal, move = state.legal, state.game.moves[state.position]
    # To update in fast memory what could stay there would be a decision about the write, too.
    if legal[Action.NOCOPY] and not move.is_output and not (move.has_output and suggestion == Action.DROP):
        start, end, _ = state.placements[Action.NOCOPY]
        if start == end and state.benefit_ps >= 0:
            return Action.NOCOPY
    return next(action for action in ORDERS[suggestion] if legal[action])


class _Reader:
    """What a plan does with a tensor at a moment."""

    def __init__(self, problem: Problem, plan: Plan):
        count = len(problem.tensors)
        self._fast = frozenset(plan.fast_uses)
        self._homes: list[list[Residency]] = [[] for _ in range(count)]
        self._outs: list[list[int]] = [[] for _ in range(count)]
        self._fast_steps: list[list[int]] = [[] for _ in range(count)]
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
        """NoCopy where the content has been used from the same place before, Copy where it comes in, Drop where it is slow."""
        steps = self._fast_steps[move.tensor]
        # A visit that only updates the tensor has no reads of its own to look at.
        first = bisect_left(steps, move.start)
        if first == len(steps) or steps[first] >= move.end:
            return Action.DROP
        home = self._home(move.tensor, steps[first])
        return Action.NOCOPY if first and home is not None and home.start <= steps[first - 1] else Action.COPY

    def output(self, move: Move) -> Action:
        """Copy where the content is copied out before it is overwritten, NoCopy where it stays, Drop where it is slow."""
        if not any(use in self._fast for use in move.uses):
            return Action.DROP
        ends = self._outs[move.tensor]
        copied = bisect_left(ends, move.end) < bisect_right(ends, move.copy_out_limit)
        return Action.COPY if copied else Action.NOCOPY

    def _home(self, tensor: int, step: int) -> Residency | None:
        homes = self._homes[tensor]
        place = bisect_right(homes, step, key=lambda residency: residency.start) - 1
        return homes[place] if place >= 0 and homes[place].end > step else None
