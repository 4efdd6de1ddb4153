"""A program whose best game is known, and players of it that are perfect, that err once, and that expect the same always."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from stowplan.errors import InputError
from stowplan.kernel.kind import Kind
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame
from stowplan.learned_guidance.memory_mapping.game.game import Action
from stowplan.models.memory_mapping.cpsat import solve as solve_exactly
from stowplan.models.memory_mapping.problem import Piece, Problem, Step, Tensor, Use
from stowplan.portfolio.memory_mapping.validation import ADAPTER
from stowplan.portfolio.validation.adapter import Estimate, Game, Stop
from stowplan.portfolio.validation.policies import Opened
from stowplan.result import Provenance, Result
from tests.patience import HANG

#: What a fast read of each tensor saves; three of them fit.
SAVES = (9, 8, 7, 3)
ALL_SLOW = 10_000 + 10 * len(SAVES)
OPTIMUM = ALL_SLOW - sum(SAVES[:3])

COPY, DROP = Action.COPY, Action.DROP
BEST = (COPY, COPY, COPY, DROP)
#: The third tensor is left out for the fourth.
ONE_BAD = (COPY, COPY, DROP, COPY)
ONE_BAD_COST = SAVES[2] - SAVES[3]


def four_reads() -> Problem:
    """A step in which everything is copied, and a read of each of four tensors."""
    return Problem(
        name="four reads",
        target="none",
        cost_model="none",
        capacity=3,
        stalls="forbidden",
        steps=(
            Step("wait", "wait", 1, (), (Piece(10_000, (), ()),)),
            *(
                Step(f"read {number}", "read", 1, (Use(number, False, 1),), (Piece(0, (10,), (10 - saved,)),))
                for number, saved in enumerate(SAVES)
            ),
        ),
        tensors=tuple(Tensor(f"t{number}", 1, 500, 500, is_input=True) for number in range(len(SAVES))),
    )


class Scripted:
    """Plays given games; ``estimate`` makes a value of (return so far, return to come)."""

    def __init__(self, likeliest: Sequence[Action] = BEST, sampled: Sequence[Sequence[Action]] = (), estimate: Any = None):
        self._likeliest, self._sampled = likeliest, sampled or (likeliest,)
        self._estimate = estimate or (lambda so_far, to_come: to_come)

    def likeliest(self, problem: Problem, stop: Stop) -> Game | None:
        return self._play(problem, self._likeliest)

    def sampled(self, problem: Problem, count: int, seed: int, stop: Stop) -> Sequence[Game]:
        return [self._play(problem, self._sampled[(seed + number) % len(self._sampled)]) for number in range(count)]

    def searched(self, problem: Problem, seed: int, stop: Stop) -> Game | None:
        return self.likeliest(problem, stop)

    def _play(self, problem: Problem, actions: Sequence[Action]) -> Game:
        state, before = CompiledGame(problem).reset(), []
        for action in actions:
            before.append(state.return_ps)
            state.step(action)
        total = state.return_ps
        estimates = tuple(
            Estimate(at, float(self._estimate(so_far, total - so_far)), total - so_far) for at, so_far in enumerate(before)
        )
        return Game(state.plan(), estimates, total, SimpleNamespace(actions=actions))


class Idle(Scripted):
    """Has no time for anything."""

    def likeliest(self, problem: Problem, stop: Stop) -> Game | None:
        return None

    def sampled(self, problem: Problem, count: int, seed: int, stop: Stop) -> Sequence[Game]:
        return []


class Fixed:
    """In the place of :class:`~stowplan.portfolio.validation.policies.Policies`."""

    def __init__(self, policy: Any, control: Any = None):
        self._opened = Opened("policy.pt", "0" * 64, ADAPTER, policy, control or Scripted((DROP,) * len(SAVES)))

    def of(self, kind: Kind[Any, Any]) -> Opened:
        return self._opened

    def idle(self, played: object) -> list[InputError]:
        return []


def solved(problem: Any, *, proven: bool = True, **options: Any) -> Result:
    """The exact side by the complete model alone, in this process."""
    outcome = solve_exactly(problem, time_limit=HANG)
    assert outcome.plan is not None
    assert outcome.bound is not None
    bound = outcome.bound if proven else outcome.bound - 100
    return Result(
        kind="memory_mapping",
        plan=outcome.plan,
        objective=outcome.plan.objective,
        bound=bound,
        status="optimal" if proven else "feasible",
        stop_reason="optimal",
        verified=True,
        baseline_name="greedy",
        baseline=ALL_SLOW,
        baselines={"greedy": ALL_SLOW},
        history=(),
        candidates=(),
        provenance=Provenance("cpsat", 0, False, {}, "four reads", "none", "none", problem.digest),
        seconds=0.0,
    )
