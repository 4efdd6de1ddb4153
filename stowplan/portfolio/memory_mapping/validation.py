"""How policies of MMapGame are validated: their games, and the best plans that serve the same uses from fast memory.

MMapGame is memory mapping as a game with one move for each access of a tensor (``docs/reference/mmap-game.md``). MMap-MuZero is
the agent that learns to play it. A *use* is the read or write of a tensor by a step; a move decides about one or several uses.
The *return* from a position of the game is the sum of rewards from there to the end. To *complete* a game is to find the best
plan that keeps its first moves. :mod:`stowplan.portfolio.validation.adapter` explains the further terms of a validation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from stowplan.hardware.simulator import simulate
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import MAX_TABLE_USES, Problem, Step, Table
from stowplan.portfolio.memory_mapping.heuristics import without_stalls
from stowplan.portfolio.memory_mapping.learned import POLICY
from stowplan.portfolio.memory_mapping.pace import PARAMS as PACE
from stowplan.portfolio.validation.adapter import Adapter, Completion, Effort, Estimate, Game, Stop

if TYPE_CHECKING:
    from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame
    from stowplan.learned_guidance.memory_mapping.muzero.play import Played, Policy

#: Names of the actions of the game, by number.
_ACTIONS = ("copy", "no copy", "drop")


class MuZeroPlayer:
    """A player with a policy of MMap-MuZero. It plays by the network alone, or with tree search as in training."""

    def __init__(self, policy: Policy):
        self.policy = policy
        self._latest_game: tuple[str, CompiledGame] | None = None

    def likeliest(self, problem: Problem, stop: Stop) -> Game | None:
        """See :class:`~stowplan.portfolio.validation.adapter.Player`."""
        game = self._game(problem)
        played = self.policy.rollout(game, should_stop=stop)
        return None if played is None else game_of(game, played)

    def sampled(self, problem: Problem, count: int, seed: int, stop: Stop) -> Sequence[Game]:
        """See :class:`~stowplan.portfolio.validation.adapter.Player`."""
        game = self._game(problem)
        return [game_of(game, played) for played in self.policy.rollouts(game, count, seed=seed, should_stop=stop)]

    def searched(self, problem: Problem, seed: int, stop: Stop) -> Game | None:
        """See :class:`~stowplan.portfolio.validation.adapter.Player`."""
        game = self._game(problem)
        return next((game_of(game, searched) for searched in self.policy.searched(game, seed=seed, should_stop=stop)), None)

    def _game(self, problem: Problem) -> CompiledGame:
        """The game of a problem. The game of the latest problem is cached."""
        from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame

        if self._latest_game is None or self._latest_game[0] != problem.digest:
            self._latest_game = problem.digest, CompiledGame(problem)
        return self._latest_game[1]


def game_of(game: CompiledGame, played: Played) -> Game:
    """The record of a finished game, with values and returns in the unit that the network was trained with.

    The unit is ``game.unit_ps`` picoseconds; the reward is in picoseconds.
    """
    unit = game.unit_ps
    estimates = tuple(Estimate(at, value, (played.return_ps - so_far) / unit) for at, value, so_far in played.estimates)
    return Game(played.plan, estimates, played.return_ps, played)


class FastOrSlow:
    """The moves of a game as decisions: whether the uses of each move are served from fast memory.

    ``plan`` is the plan of the game, and ``actions`` has the number of the action of each move. A decision is fixed by adding
    so much latency to the other choice that every plan with that choice is worse than the game's plan. Offsets and times of
    copies are not fixed.
    """

    rest = "windows, offsets and copies as the game chooses them"

    def __init__(self, problem: Problem, plan: Plan, actions: Sequence[int]):
        from stowplan.learned_guidance.memory_mapping.game.game import moves_of

        self.problem, self.plan = problem, plan
        self._moves = moves_of(problem)
        self._actions = actions
        self._fast = frozenset(plan.fast_uses)

    @cached_property
    def names(self) -> Sequence[str]:
        """A name for each move, such as ``copy T for S``: the action, the tensor, and the step."""
        steps, tensors = self.problem.steps, self.problem.tensors
        role = ("for", "written by")
        return [
            f"{_ACTIONS[action]} {tensors[move.tensor].name} {role[move.is_output]} {steps[move.start].name}"
            for move, action in zip(self._moves, self._actions, strict=True)
        ]

    def best(self, count: int, effort: Effort) -> Completion:
        """See :class:`~stowplan.portfolio.validation.adapter.Decisions`."""
        fixed = {use: use in self._fast for move in self._moves[:count] for use in move.uses}
        problem = with_uses(self.problem, fixed, self.plan.objective)
        hint = msgspec.structs.replace(self.plan, problem=problem.digest)
        outcome = self._complete(problem, hint, effort) if problem.use_count <= PACE.complete_model_uses else None
        return outcome or self._portfolio(problem, hint, effort)

    def _complete(self, problem: Problem, hint: Plan, effort: Effort) -> Completion | None:
        """Complete the game with the complete CP-SAT model, in this process; None if the model does not support the problem."""
        from stowplan.models.memory_mapping.cpsat import solve

        try:
            outcome = solve(
                problem,
                time_limit=effort.seconds,
                seed=effort.seed,
                deterministic_limit=effort.work,
                hint=hint,
                lower_bound_ps=effort.bound,
                should_stop=effort.stop,
            )
        except NotImplementedError:
            return None
        assert outcome.plan is not None
        assert outcome.bound is not None
        return Completion(outcome.plan.objective, outcome.bound)

    def _portfolio(self, problem: Problem, hint: Plan, effort: Effort) -> Completion:
        """Complete the game with a run of heuristic and exact candidates."""
        from stowplan.kernel.solve import solve

        result = solve(
            problem,
            # In a deterministic run the time limit sets the amount of work.
            time_limit=max(0.1, min(effort.seconds, effort.deadline.remaining) if effort.work is None else effort.work),
            candidates="heuristic,exact",
            seed=effort.seed,
            deterministic=effort.work is not None,
            plans={"game": hint},
            cancel=effort.deadline.cancelled,
        )
        return Completion(min(result.objective or hint.objective, hint.objective), max(effort.bound, result.bound or 0))


def with_uses(problem: Problem, fixed: Mapping[int, bool], objective_ps: int) -> Problem:
    """The problem with latencies increased so that plans that serve some uses differently are worse than a given plan.

    Parameters
    ----------
    problem
        The problem without fixed uses.
    fixed
        For some uses, by number, whether they are served from fast memory. A use on which no latency depends is not fixed if
        the latency table of its step already has the largest number of uses.
    objective_ps
        Objective (ps) of a plan that serves these uses in this way.
    """
    penalty = max(problem.all_slow_ps, objective_ps) - problem.floor_ps + 1
    steps, number = [], 0
    for step in problem.steps:
        here = {use: fixed[number + use] for use in range(len(step.uses)) if number + use in fixed}
        number += len(step.uses)
        steps.append(_penalise(step, here, math.ceil(penalty / step.weight)) if here else step)
    return msgspec.structs.replace(problem, steps=tuple(steps))


def _penalise(step: Step, fixed: Mapping[int, bool], penalty: int) -> Step:
    """The step with its latency increased by ``penalty`` (ps) for each use that is not served as ``fixed`` says.

    The keys of ``fixed`` are positions among the uses of the step.
    """
    if step.table is not None:
        return msgspec.structs.replace(step, table=_penalise_table(step.table, fixed, penalty))
    pieces = tuple(
        msgspec.structs.replace(
            piece,
            slow_ps=tuple(time_ps + penalty * fixed.get(use, False) for use, time_ps in enumerate(piece.slow_ps)),
            fast_ps=tuple(time_ps + penalty * (not fixed.get(use, True)) for use, time_ps in enumerate(piece.fast_ps)),
        )
        for piece in step.pieces
    )
    return msgspec.structs.replace(step, pieces=pieces)


def _penalise_table(table: Table, fixed: Mapping[int, bool], penalty: int) -> Table:
    """The latency table with the increases of :func:`_penalise`. It may depend on more uses than before."""
    uses, latency = list(table.uses), list(table.latency_ps)
    for use in fixed:
        if use not in uses and len(uses) < MAX_TABLE_USES:
            uses.append(use)
            latency += latency
    latency = [
        time_ps + penalty * sum(bool(mask >> bit & 1) != fixed[use] for bit, use in enumerate(uses) if use in fixed)
        for mask, time_ps in enumerate(latency)
    ]
    return Table(tuple(uses), tuple(latency))


def _decisions(problem: Problem, game: Game, best_plan: Plan | None) -> FastOrSlow | None:
    """The decisions of a finished game, which is played again; the best known plan is not needed."""
    from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame

    state = CompiledGame(problem).reset()
    state.play(game.trace.actions)
    return FastOrSlow(problem, game.plan, state.actions)


def _untrained(policy: Policy) -> Policy:
    """A policy with the same settings and a random network."""
    from stowplan.learned_guidance.memory_mapping.muzero.network import MMapNetwork

    return type(policy)(policy.file, MMapNetwork(policy.config.network))


ADAPTER = Adapter(
    agent="MMap-MuZero",
    source=POLICY,
    format="stowplan.mmap_muzero.policy",
    player=MuZeroPlayer,
    untrained=_untrained,
    decisions=_decisions,
    simulated=lambda problem, plan: simulate(problem, plan).total_ps,
    rival=without_stalls,
)
