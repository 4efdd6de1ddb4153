"""The best return within MMapGame, for small problems: depth first over all games, states met before cut off.

An agent is judged fairly against the best game, not only against the best plan: the game cannot reach every plan. Memory that
is *less* full is not always better for what follows, because offsets and windows are chosen by rule; so only states that are
equal in all that later moves can see are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import inf

from benchmarks.lib.memory_mapping.future import Future, OptimisticReturn
from benchmarks.lib.memory_mapping.plain_game import PlainGame, State
from stowplan.deadline import Deadline
from stowplan.learned_guidance.memory_mapping.game.game import Action
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem

#: States remembered at most; beyond it the search goes on without remembering more.
MAX_REMEMBERED = 2_000_000


@dataclass(frozen=True)
class GameOptimum:
    """What :func:`game_optimum` found."""

    return_ps: int
    """Return of the best game found."""
    bound_ps: int
    """No game has a larger return; equal to ``return_ps`` where that is proven optimal."""
    actions: tuple[Action, ...]
    """Moves of the best game found, from the start; all are legal without Drop-backup."""
    plan: Plan
    nodes: int
    """States visited."""

    @property
    def is_proven(self) -> bool:
        """Whether no game is better."""
        return self.return_ps == self.bound_ps


def game_optimum(
    problem: Problem,
    *,
    strict_copy_windows: bool = False,
    objective_bound_ps: int | None = None,
    node_limit: int | None = None,
    time_limit: float | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> GameOptimum:
    """The best game on ``problem``, proven where no limit stops the search; fit for some 40 moves.

    Parameters
    ----------
    objective_bound_ps
        A proven lower bound on the latency of every plan, from an exact model; it ends the search as soon as it is reached.
    node_limit, time_limit, should_stop
        What ends the search with the best game so far: states visited, seconds, a callback. Dropping all is always a game.

    Returns
    -------
    GameOptimum
        The best game found, and a bound on the return of any.
    """
    game = PlainGame(problem, strict_copy_windows=strict_copy_windows, drop_backup=False)
    ceiling = inf if objective_bound_ps is None else problem.all_slow_ps - objective_bound_ps
    return _Search(game, ceiling).run(inf if node_limit is None else node_limit, Deadline(time_limit), should_stop)


@dataclass(slots=True)
class _Node:
    state: State
    actions: tuple[Action, ...]
    bound_ps: int
    key: Hashable = None


class _Search:
    def __init__(self, game: PlainGame, ceiling_ps: float):
        self.game = game
        self.ceiling_ps = ceiling_ps
        self.bound = OptimisticReturn(game)
        self.future = Future(game)
        self.seen: dict[Hashable, int] = {}

    def run(self, node_limit: float, deadline: Deadline, should_stop: Callable[[], bool] | None) -> GameOptimum:
        # Dropping everything is always a game.
        best, best_actions = 0, (Action.DROP,) * len(self.game.moves)
        root = self.game.reset()
        stack = [_Node(root, (), self._at_most(root))]
        nodes = 0
        while stack:
            if nodes >= node_limit or best >= self.ceiling_ps or (nodes % 64 == 0 and _stopped(deadline, should_stop)):
                break
            node = stack.pop()
            # A better way to an equal state may have been found since.
            if node.bound_ps <= best or self.seen.get(node.key, node.state.return_ps) > node.state.return_ps:
                continue
            nodes += 1
            if node.state.is_over:
                best, best_actions = node.state.return_ps, node.actions
                continue
            # The child that earns most is visited first, so that there is a good game early.
            children = [child for action in node.state.legal_actions() if (child := self._child(node, action)) is not None]
            stack += sorted((child for child in children if child.bound_ps > best), key=lambda child: child.state.return_ps)
        left = max((node.bound_ps for node in stack), default=best)
        bound = max(best, left) if best < self.ceiling_ps else best
        return GameOptimum(best, bound, best_actions, self._replay(best_actions), nodes)

    def _child(self, node: _Node, action: Action) -> _Node | None:
        """The state after an action; None where it is lost, or as good a way to it is known."""
        state = node.state.copy()
        state.step(action)
        if state.is_lost:
            return None
        key = self.future.key(state)
        known = self.seen.get(key)
        if known is not None and known >= state.return_ps:
            return None
        if known is not None or len(self.seen) < MAX_REMEMBERED:
            self.seen[key] = state.return_ps
        return _Node(state, (*node.actions, action), self._at_most(state), key)

    def _at_most(self, state: State) -> int:
        bound = self.bound(state)
        return bound if bound <= self.ceiling_ps else int(self.ceiling_ps)

    def _replay(self, actions: tuple[Action, ...]) -> Plan:
        state = self.game.reset()
        for action in actions:
            state.step(action)
        return state.plan()


def _stopped(deadline: Deadline, should_stop: Callable[[], bool] | None) -> bool:
    return deadline.expired or (should_stop is not None and should_stop())
