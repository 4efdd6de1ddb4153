"""Training of MMap-MuZero on one or more programs: self-play and training steps in turn, in one process.

An iteration is some moves of all games, some training steps, and local search from one of the best games. Before the first,
the warm start plays episodes in groups; a run can stop after each of them, and none is counted as an iteration.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from stowplan.errors import InputError
from stowplan.learned_guidance.memory_mapping.game.demonstrations import actions_of
from stowplan.learned_guidance.memory_mapping.game.game import Best
from stowplan.learned_guidance.memory_mapping.muzero import checkpoint as files
from stowplan.learned_guidance.memory_mapping.muzero.config import TrainingConfig
from stowplan.learned_guidance.memory_mapping.muzero.exploration import Exploration
from stowplan.learned_guidance.memory_mapping.muzero.learner import Learner, Losses
from stowplan.learned_guidance.memory_mapping.muzero.replay import Replay, Trajectory
from stowplan.learned_guidance.memory_mapping.muzero.self_play import ProgramGame, SelfPlay, replayed
from stowplan.learned_guidance.training import checkpoint
from stowplan.learned_guidance.training.curve import Column, Report, Tally, mean
from stowplan.learned_guidance.training.run import Allowance, BaseTrainer, Counts, InterruptedIterationError
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import verify


@dataclass(frozen=True)
class Progress(Report):
    """What an iteration came to."""

    iteration: int
    seconds: Annotated[float, Column(form=".3f")]
    """Of training, earlier runs included."""
    games: int
    """Finished since the beginning; so are the two below."""
    moves: int
    training_steps: int
    best: Annotated[float, Column(("best_R",))]
    """Normalised return of the best game, in the mean over programs that have one; NaN before."""
    mean: Annotated[float, Column(("mean_R",))]
    """Normalised return of the games that this iteration finished, in the mean; NaN without any."""
    losses: Annotated[
        Losses | None, Column(("loss", "policy_loss", "value_loss", "reward_loss", "gradient_norm", "entropy", "value_error"))
    ]
    """Means of this iteration; None without training steps."""
    temperature: float
    moves_per_second: Annotated[float, Column(form=".1f")]
    """Of self-play alone."""
    updates_per_second: Annotated[float, Column(("steps_per_second",), form=".2f")]
    """Of training steps alone."""

    @property
    def line(self) -> str:
        """The same in short, for people."""
        best = "no game yet" if math.isnan(self.best) else f"best R {self.best:.4f}"
        mean = "" if math.isnan(self.mean) else f", mean {self.mean:.4f}"
        learning = "" if self.losses is None else f", loss {self.losses.total:.3f}, value error {self.losses.value_error:.3f}"
        return (
            f"[{self.seconds:6.1f} s] {best}{mean}, {self.games} games, {self.training_steps} steps{learning}, "
            f"{self.moves_per_second:.0f} moves/s"
        )


#: Warm-start episodes come in groups of so many, and every how many of them is remembered in any case.
EPISODES_AT_ONCE, EPISODES_KEPT = 16, 32

#: What a warm-start episode costs besides its moves, in moves.
EPISODE_COST = 300

#: Part of a time limit that the warm start may take: the rest is for learning.
WARM_START_SHARE = 0.5


class Trainer(BaseTrainer[TrainingConfig, Progress]):
    """See the module.

    Parameters
    ----------
    problems
        What to learn to play; each game is of one of them, drawn evenly.
    seed
        Of everything random.
    device
        Where the network is: ``"cpu"`` or ``"cuda"``.
    weights
        Of a network of the same sizes to begin with.

    Raises
    ------
    InputError
        If there is no program, or one has no moves.
    UsageError
        If the seed is none.
    """

    CHECKPOINT, POLICY, COLUMNS = files.CHECKPOINT, files.POLICY, Progress.columns()

    def __init__(
        self,
        problems: Sequence[Problem],
        config: TrainingConfig,
        *,
        seed: int = 0,
        device: str = "cpu",
        weights: dict[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        super().__init__(problems, config, seed=seed, clock=clock)
        self.programs = [ProgramGame(problem, config) for problem in problems]
        self.learner = Learner(config, seed, device)
        if weights is not None:
            self.learner.load(weights)
        self.replay = Replay(config, len(self.programs))
        self._play_rng, start_rng, self._learning_rng = (np.random.default_rng([seed, number]) for number in range(3))
        self._exploration = Exploration(self.programs, config, self.replay, start_rng)
        self._self_play = SelfPlay(self.programs, config, self._exploration.draw_start)
        self.best = [Best(clock=clock) for _ in self.programs]
        """Best game of each program."""
        self.games = self.moves = self._iterations = 0
        self._warm_start_moves = 0
        self._is_warm = config.warm_start_moves == 0

    @property
    def iteration(self) -> int:
        """Iterations done; the warm start counts for none."""
        return self._iterations

    @property
    def done(self) -> bool:
        """Whether the configured training steps are done; an iteration is ended all the same."""
        return self.learner.steps >= self.config.training_steps

    def _iterate(self, allowance: Allowance) -> Progress | None:
        if not self._is_warm:
            self._warm_up(allowance)
            return None
        tally: Tally[Losses] = Tally()
        for _ in range(self.config.moves_per_iteration):
            allowance.check()
            self._play(tally)
        for _ in range(self.config.updates_per_iteration):
            allowance.check()
            self._learn(tally)
        self._search_locally(allowance)
        self._iterations += 1
        return self._report(tally)

    def _warm_up(self, allowance: Allowance) -> None:
        """Some warm-start episodes; of those that are none of the best, some are remembered."""
        for _ in range(EPISODES_AT_ONCE):
            allowance.check()
            # That the network learns anything counts for more than that a run with a time limit begins like one without.
            if allowance.used >= WARM_START_SHARE:
                self._is_warm = True
                return
            program, state = self._exploration.warm_start()
            self.games += 1
            self._warm_start_moves += len(self.programs[program].game.moves) + EPISODE_COST
            self.best[program].games += 1
            if self.games % EPISODES_KEPT == 0 or self.replay.is_elite(program, state.return_ps):
                self._keep_played(program, state.actions)
        if self._warm_start_moves >= self.config.warm_start_moves:
            self._search_locally(allowance)
            self._is_warm = True

    def _play(self, tally: Tally[Losses]) -> None:
        """One move of all games."""
        began = self._clock()
        for game in self._self_play.advance(self.learner.model, self.learner.steps, self._play_rng):
            self._remember(game, games=1)
            self.games += 1
            tally.results.append(self.programs[game.program].normalised(game.return_ps))
        self.moves += self.config.games
        tally.moves += self.config.games
        tally.acting_seconds += self._clock() - began

    def _learn(self, tally: Tally[Losses]) -> None:
        """One training step, where there are games to learn from."""
        began = self._clock()
        if len(self.replay):
            tally.losses.append(self.learner.learn(self.replay, self.programs, self._learning_rng))
            tally.learning_seconds += self._clock() - began

    def _search_locally(self, allowance: Allowance) -> None:
        """Local search from one of the best games; what it finds is one of them, if better."""
        if not self.config.local_search_moves:
            return
        searched = self._exploration.search_locally(allowance.is_over)
        if searched is None:
            raise InterruptedIterationError
        program, best = searched
        if best is not None and best.actions is not None and self.replay.is_elite(program, best.return_ps or 0):
            self._keep_played(program, best.actions)

    # Games

    def demonstrate(self, number: int, plan: Plan | Sequence[int] | NDArray[np.integer[Any]]) -> None:
        """Learn from a plan, or from a game that was played elsewhere.

        Raises
        ------
        InputError
            It is no valid plan.
        ValueError
            It is not a whole game of legal actions.
        """
        if isinstance(plan, Plan):
            problem = self.programs[number].problem
            violations = verify(problem, plan).violations
            if violations:
                raise InputError(f"is no valid plan: {violations[0]}")
            plan = actions_of(problem, plan).actions
        self._keep_played(number, plan, is_demonstration=True)

    def _keep_played(
        self, program: int, actions: Sequence[int] | NDArray[np.integer[Any]], *, is_demonstration: bool = False
    ) -> None:
        """Learn from a game that was played without search; it has been counted, or is not the agent's own."""
        played = np.array(actions, np.int8)
        self._remember(
            replayed(self.programs[program], program, played, self.config.discount, is_demonstration=is_demonstration)
        )

    def _remember(self, game: Trajectory, games: int = 0) -> None:
        """Learn from a game; it counts for so many in the curve of best games."""
        self.replay.add(game)
        self.best[game.program].offer(game.return_ps, game.actions, games=games)

    def plan(self, number: int) -> Plan | None:
        """Of the best game of the program of this number; None where there is none."""
        actions = self.best[number].actions
        if actions is None:
            return None
        state = self.programs[number].game.reset()
        state.play(actions)
        return state.plan()

    # Reports and files

    def _report(self, tally: Tally[Losses]) -> Progress:
        best = [
            program_game.normalised(best.return_ps)
            for program_game, best in zip(self.programs, self.best, strict=True)
            if best.return_ps is not None
        ]
        return Progress(
            iteration=self.iteration,
            seconds=self.seconds,
            games=self.games,
            moves=self.moves,
            training_steps=self.learner.steps,
            best=mean(best),
            mean=mean(tally.results),
            losses=tally.mean_losses,
            temperature=self.config.temperature(self.learner.steps),
            moves_per_second=tally.moves / max(tally.acting_seconds, 1e-9),
            updates_per_second=tally.steps_per_second,
        )

    @property
    def counts(self) -> Counts:
        """What has been done so far."""
        return Counts(self.learner.steps, self.games, self.moves)

    def policy_values(self) -> dict[str, Any]:
        """The network's weights."""
        return {"weights": checkpoint.plain_weights(self.learner.network.state_dict())}

    def state_dict(self) -> dict[str, Any]:
        """All that the next iteration depends on."""
        generators = self._play_rng, self._exploration.rng, self._learning_rng
        return {
            **super().state_dict(),
            "counters": [self._iterations, self.games, self.moves, self._warm_start_moves, self.learner.steps, self._is_warm],
            "generators": [checkpoint.pack_generator(rng) for rng in generators],
            "best": [files.pack_best(best) for best in self.best],
            **self.learner.state_dict(),
            **files.pack_replay(self.replay),
            **files.pack_episodes(self._self_play.episodes, self.config.discount),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a state; KeyError, TypeError, ValueError and the like where it is none."""
        super().load_state_dict(state)
        *counters, self._is_warm = state["counters"]
        self._iterations, self.games, self.moves, self._warm_start_moves, self.learner.steps = counters
        generators = map(checkpoint.unpack_generator, state["generators"])
        self._play_rng, self._exploration.rng, self._learning_rng = generators
        self.best = [files.unpack_best(packed, state["seconds"], self._clock) for packed in state["best"]]
        self.learner.load_state_dict(state)
        files.unpack_replay(state, self.replay, self.config.discount)
        self._self_play.episodes = files.unpack_episodes(state, self.programs, self.config.discount)
