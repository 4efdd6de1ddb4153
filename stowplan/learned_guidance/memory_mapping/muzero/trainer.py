"""Training of MMap-MuZero on one or more programs: self-play and training steps in turn, in one process.

An iteration consists of moves in all games, training steps, and local search from one of the best games. Before the first
iteration, the *warm start* plays episodes without the network, in groups. A run can stop after each group. Groups are not
counted as iterations.
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
from stowplan.learned_guidance.memory_mapping.muzero.self_play import ProgramGame, SelfPlay, replay_actions
from stowplan.learned_guidance.training import checkpoint
from stowplan.learned_guidance.training.curve import Column, Report, Tally, mean
from stowplan.learned_guidance.training.run import Allowance, BaseTrainer, Counts, InterruptedIterationError
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import verify


@dataclass(frozen=True)
class Progress(Report):
    """Results of an iteration."""

    iteration: int
    seconds: Annotated[float, Column(form=".3f")]
    """Seconds of training, earlier runs included."""
    games: int
    """Games finished since the beginning of training."""
    moves: int
    """Moves since the beginning of training."""
    training_steps: int
    """Training steps since the beginning of training."""
    best: Annotated[float, Column(("best_R",))]
    """Normalised return of the best game, averaged over the programs that have one; NaN before."""
    mean: Annotated[float, Column(("mean_R",))]
    """Mean normalised return of the games that this iteration finished; NaN if none."""
    losses: Annotated[
        Losses | None, Column(("loss", "policy_loss", "value_loss", "reward_loss", "gradient_norm", "entropy", "value_error"))
    ]
    """Means over this iteration; None without training steps."""
    temperature: float
    """Temperature of the search of self-play."""
    moves_per_second: Annotated[float, Column(form=".1f")]
    """Moves per second of the time of self-play."""
    updates_per_second: Annotated[float, Column(("steps_per_second",), form=".2f")]
    """Training steps per second of the time of training steps."""

    @property
    def line(self) -> str:
        """A short line for the terminal."""
        best = "no game yet" if math.isnan(self.best) else f"best R {self.best:.4f}"
        mean = "" if math.isnan(self.mean) else f", mean {self.mean:.4f}"
        learning = "" if self.losses is None else f", loss {self.losses.total:.3f}, value error {self.losses.value_error:.3f}"
        return (
            f"[{self.seconds:6.1f} s] {best}{mean}, {self.games} games, {self.training_steps} steps{learning}, "
            f"{self.moves_per_second:.0f} moves/s"
        )


#: Number of warm-start episodes in a group; and n, where every n-th episode is added to the replay whatever its return is.
EPISODES_AT_ONCE, EPISODES_KEPT = 16, 32

#: Cost of a warm-start episode besides its moves, in moves.
EPISODE_COST = 300

#: Part of a time limit that the warm start may take; the rest is for learning.
WARM_START_SHARE = 0.5


class Trainer(BaseTrainer[TrainingConfig, Progress]):
    """Trains MMap-MuZero, as the docstring of the module describes.

    Parameters
    ----------
    problems
        Programs to learn. The program of each game is drawn uniformly.
    config
        Sizes of the network, and settings of training.
    seed
        Seed of all random numbers.
    device
        Device of the network: ``"cpu"`` or ``"cuda"``.
    weights
        Initial weights, from a network of the same sizes; None for random ones.
    clock
        A monotonic clock in seconds.

    Raises
    ------
    InputError
        If there is no program, one has no moves, or ``weights`` are of other sizes.
    UsageError
        If the seed is not valid.
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
            try:
                self.learner.load(weights)
            except RuntimeError as error:
                raise InputError("the policy's network is of other sizes than the configuration asks for") from error
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
        """Iterations done, without the warm start."""
        return self._iterations

    @property
    def done(self) -> bool:
        """Whether the configured training steps are done. An iteration that has begun is completed."""
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
        """Play a group of warm-start episodes. Some that are not among the best are also added to the replay."""
        for _ in range(EPISODES_AT_ONCE):
            allowance.check()
            # With a time limit the network must have time to learn, even if the run then differs from one without a limit.
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
        """Make one move in each game."""
        began = self._clock()
        for game in self._self_play.advance(self.learner.model, self.learner.steps, self._play_rng):
            self._remember(game, games=1)
            self.games += 1
            tally.results.append(self.programs[game.program].normalised(game.return_ps))
        self.moves += self.config.games
        tally.moves += self.config.games
        tally.acting_seconds += self._clock() - began

    def _learn(self, tally: Tally[Losses]) -> None:
        """Do one training step if there are games to learn from."""
        began = self._clock()
        if len(self.replay):
            tally.losses.append(self.learner.learn(self.replay, self.programs, self._learning_rng))
            tally.learning_seconds += self._clock() - began

    def _search_locally(self, allowance: Allowance) -> None:
        """Run local search from one of the best games, and add the result to them if it is better."""
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
        """Add a demonstration: a plan, or the actions of a game that was played elsewhere.

        Raises
        ------
        InputError
            If the plan is not valid.
        ValueError
            If the actions are not a complete game of legal actions.
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
        """Add a game played without search. It is not counted: it was counted before, or is not the agent's own."""
        played = np.array(actions, np.int8)
        self._remember(
            replay_actions(self.programs[program], program, played, self.config.discount, is_demonstration=is_demonstration)
        )

    def _remember(self, game: Trajectory, games: int = 0) -> None:
        """Add a game to the replay. It counts as ``games`` games in the curve of best games."""
        self.replay.add(game)
        self.best[game.program].offer(game.return_ps, game.actions, games=games)

    def plan(self, number: int) -> Plan | None:
        """Return the plan of the best game of the program with this number; None if it has no game yet."""
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
        """Counts of the training so far."""
        return Counts(self.learner.steps, self.games, self.moves)

    def policy_values(self) -> dict[str, Any]:
        """Return the weights of the network."""
        return {"weights": checkpoint.plain_weights(self.learner.network.state_dict())}

    def state_dict(self) -> dict[str, Any]:
        """Return all state that the next iteration depends on."""
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
        """Continue from a state that :meth:`state_dict` returned; raise one of ``checkpoint.DAMAGE`` if it is not valid."""
        super().load_state_dict(state)
        *counters, self._is_warm = state["counters"]
        self._iterations, self.games, self.moves, self._warm_start_moves, self.learner.steps = counters
        generators = map(checkpoint.unpack_generator, state["generators"])
        self._play_rng, self._exploration.rng, self._learning_rng = generators
        self.best = [files.unpack_best(packed, state["seconds"], self._clock) for packed in state["best"]]
        self.learner.load_state_dict(state)
        files.unpack_replay(state, self.replay, self.config.discount)
        self._self_play.episodes = files.unpack_episodes(state, self.programs, self.config.discount)
