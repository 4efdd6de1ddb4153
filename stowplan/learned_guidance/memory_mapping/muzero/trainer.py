"""Training of MMap-MuZero on one or more programs: self-play and training steps in turn, in one process.

A tick is one move of all games, or one training step; before them, one warm-start episode.
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
from stowplan.learned_guidance.memory_mapping.game.best import Best
from stowplan.learned_guidance.memory_mapping.game.demonstrations import actions_of
from stowplan.learned_guidance.memory_mapping.game.local_search import improve
from stowplan.learned_guidance.memory_mapping.muzero.checkpoint import (
    CHECKPOINT,
    POLICY,
    pack_best,
    pack_games,
    unpack_best,
    unpack_games,
)
from stowplan.learned_guidance.memory_mapping.muzero.config import TrainingConfig
from stowplan.learned_guidance.memory_mapping.muzero.learner import Learner, Losses, make_batch
from stowplan.learned_guidance.memory_mapping.muzero.network import TorchModel
from stowplan.learned_guidance.memory_mapping.muzero.replay import Replay, Trajectory
from stowplan.learned_guidance.memory_mapping.muzero.self_play import (
    NO_BIAS,
    EpisodeStart,
    ProgramGame,
    SelfPlay,
    draw_bias,
    episode_of,
    play_warm_start,
    replayed,
)
from stowplan.learned_guidance.training import checkpoint
from stowplan.learned_guidance.training.curve import Column, Report, Tally, mean
from stowplan.learned_guidance.training.run import Allowance, BaseTrainer, Counts
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

    CHECKPOINT, POLICY, COLUMNS = CHECKPOINT, POLICY, Progress.columns()

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
        self._model = TorchModel(self.learner.network)
        self._target_model = TorchModel(self.learner.target)
        self.best = [Best(clock=clock) for _ in self.programs]
        """Best game of each program."""
        self.games = self.moves = self.ticks = 0
        self._warm_start_moves = 0
        self._is_warm = config.warm_start_moves == 0
        self._is_search_due = False
        self._play_rng, self._start_rng, self._learning_rng = (np.random.default_rng([seed, number]) for number in range(3))
        self._self_play = SelfPlay(self.programs, config, self._draw_start)
        self._iteration: Tally[Losses] = Tally()
        self._report = False

    @property
    def iteration(self) -> int:
        """Whole iterations done; the warm start belongs to none."""
        return self.ticks // self.ticks_per_iteration

    @property
    def ticks_per_iteration(self) -> int:
        """Moves and training steps of an iteration."""
        return self.config.moves_per_iteration + self.config.updates_per_iteration

    @property
    def done(self) -> bool:
        """Whether the configured training steps are done."""
        return self.learner.steps >= self.config.training_steps

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
        self._remember(number, np.array(plan, np.int8), is_demonstration=True)

    def plan(self, number: int) -> Plan | None:
        """Of the best game of the program of this number; None where there is none."""
        actions = self.best[number].actions
        if actions is None:
            return None
        state = self.programs[number].game.reset()
        state.play(actions)
        return state.plan()

    def tick(self, allowance: Allowance | None = None) -> None:
        """One move of all games, or one training step; at the very beginning, one warm-start episode.

        The last tick of an iteration, and of the warm start, also does the local search. Where that is interrupted it is the
        next tick, from its beginning.
        """
        allowance = allowance or Allowance()
        if not self._is_search_due:
            if self._is_warm:
                self._play_or_learn()
            else:
                self._warm_up(allowance)
        if self._is_search_due and self._search_locally(allowance):
            self._is_search_due = False

    def _play_or_learn(self) -> None:
        began, tally = self._clock(), self._iteration
        if self.ticks % self.ticks_per_iteration < self.config.moves_per_iteration:
            self._play()
            tally.acting_seconds += self._clock() - began
        elif len(self.replay):
            self._learn()
            tally.learning_seconds += self._clock() - began
        self.ticks += 1
        self._report = self._is_search_due = self.ticks % self.ticks_per_iteration == 0

    def _play(self) -> None:
        if not self._self_play.episodes:
            self._self_play.start()
        for game in self._self_play.advance(self._model, self.learner.steps, self._play_rng):
            self._keep(game)
        self.moves += self.config.games
        self._iteration.moves += self.config.games

    def _warm_up(self, allowance: Allowance) -> None:
        """One warm-start episode; of those that are none of the best, some are remembered."""
        # That the network learns anything counts for more than that a run with a time limit begins like one without.
        if allowance.used >= WARM_START_SHARE:
            self._is_warm = True
            return
        start = self._draw_start(is_biased=True)
        program_game = self.programs[start.program]
        state = play_warm_start(program_game, start, self._start_rng)
        self.games += 1
        self._warm_start_moves += len(program_game.game.moves) + EPISODE_COST
        self.best[start.program].games += 1
        if self.games % EPISODES_KEPT == 0 or self.replay.is_elite(start.program, state.return_ps):
            self._remember(start.program, np.array(state.actions, np.int8))
        is_enough = self._warm_start_moves >= self.config.warm_start_moves
        self._is_warm = self._is_search_due = is_enough and self.games % EPISODES_AT_ONCE == 0

    def _search_locally(self, allowance: Allowance) -> bool:
        """From one of the best games of a program, drawn evenly; what is found is one of them, if better.

        False where it was interrupted.
        """
        rng = self._start_rng
        if not self.config.local_search_moves:
            return True
        before = rng.bit_generator.state
        program = int(rng.integers(len(self.programs)))
        games = self.replay.elite[program]
        if not games:
            return True
        game = games[int(rng.integers(len(games)))]
        program_game = self.programs[program]
        state = program_game.game.reset()
        state.play(game.actions)
        seed = int(rng.integers(2**31))
        rounds = max(1, self.config.local_search_moves // len(program_game.game.moves))
        found = improve(program_game.game, state.actions, rounds=rounds, seed=seed, should_stop=allowance.is_over)
        if found.games <= rounds:
            rng.bit_generator.state = before
            return False
        if found.actions is not None and found.return_ps is not None and self.replay.is_elite(program, found.return_ps):
            self._remember(program, np.array(found.actions, np.int8))
        return True

    def _remember(self, program: int, actions: NDArray[np.int8], *, is_demonstration: bool = False) -> None:
        """Learn from a game that was played without search; it has been counted, or is not the agent's own."""
        game = replayed(self.programs[program], program, actions, self.config.discount, is_demonstration=is_demonstration)
        self.replay.add(game)
        self.best[program].offer(game.return_ps, game.actions, games=0)

    def _keep(self, game: Trajectory) -> None:
        """Remember a finished game."""
        self.replay.add(game)
        self.games += 1
        self.best[game.program].offer(game.return_ps, game.actions)
        self._iteration.results.append(self.programs[game.program].normalised(game.return_ps))

    def _learn(self) -> None:
        rng = self._learning_rng
        sample = self.replay.sample(self.config.batch_size, rng)
        batch = make_batch(sample, self.programs, self.config, self._target_model, rng)
        losses, errors = self.learner.update(batch)
        self.replay.update(sample, errors)
        self._iteration.losses.append(losses)

    def _draw_start(self, is_biased: bool = False) -> EpisodeStart:
        """A program, drawn evenly; now and then with the beginning of a good game of it, or with an exploration bias."""
        rng, config = self._start_rng, self.config
        program = int(rng.integers(len(self.programs)))
        bias = NO_BIAS
        if is_biased or (config.exploration_bias_fraction > 0 and rng.random() < config.exploration_bias_fraction):
            bias = draw_bias(rng)
        if config.restart_fraction > 0 and rng.random() < config.restart_fraction:
            games = [*self.replay.elite[program], *(game for game in self.replay.demonstrations if game.program == program)]
            if games:
                game = games[int(rng.integers(len(games)))]
                return EpisodeStart(program, game.actions[: int(rng.integers(len(game)))], bias)
        return EpisodeStart(program, np.empty(0, np.int8), bias)

    def progress(self) -> Progress | None:
        """After each iteration, what it came to."""
        if not self._report or self._is_search_due:
            return None
        tally, self._iteration, self._report = self._iteration, Tally(), False
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

    # Files

    @property
    def counts(self) -> Counts:
        """What has been done so far."""
        return Counts(self.learner.steps, self.games, self.moves)

    def policy_values(self) -> dict[str, Any]:
        """The network's weights."""
        return {"weights": checkpoint.plain_weights(self.learner.network.state_dict())}

    def state_dict(self) -> dict[str, Any]:
        """All that the next tick depends on."""
        learner, replay, episodes = self.learner, self.replay, self._self_play.episodes
        return super().state_dict() | {
            "counters": [self.ticks, self.games, self.moves, self._warm_start_moves, learner.steps],
            "flags": [self._is_warm, self._is_search_due, self._report],
            "network": learner.network.state_dict(),
            "target": learner.target.state_dict(),
            "optimizer": learner.optimizer.state_dict(),
            "generators": [checkpoint.pack_generator(rng) for rng in (self._play_rng, self._start_rng, self._learning_rng)],
            "recent": pack_games(replay.recent),
            "priorities": checkpoint.pack_arrays(replay.priorities),
            "next_slot": replay.next_slot,
            "elite": [pack_games(games) for games in replay.elite],
            "demonstrations": pack_games(replay.demonstrations),
            "episodes": pack_games([episode.trajectory(self.config.discount) for episode in episodes]),
            "biases": checkpoint.pack_arrays([episode.bias for episode in episodes]),
            "best": [pack_best(best) for best in self.best],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a state; KeyError, TypeError, ValueError and the like where it is none."""
        super().load_state_dict(state)
        learner, discount = self.learner, self.config.discount
        self.ticks, self.games, self.moves, self._warm_start_moves, learner.steps = state["counters"]
        self._is_warm, self._is_search_due, self._report = state["flags"]
        learner.network.load_state_dict(state["network"])
        learner.target.load_state_dict(state["target"])
        learner.optimizer.load_state_dict(state["optimizer"])
        self._play_rng, self._start_rng, self._learning_rng = map(checkpoint.unpack_generator, state["generators"])
        recent = unpack_games(state["recent"], discount)
        self.replay.restore(recent, checkpoint.unpack_arrays(state["priorities"]), state["next_slot"])
        self.replay.elite = [unpack_games(games, discount) for games in state["elite"]]
        self.replay.demonstrations = unpack_games(state["demonstrations"], discount)
        games, biases = unpack_games(state["episodes"], discount), checkpoint.unpack_arrays(state["biases"])
        self._self_play.episodes = [
            episode_of(self.programs[game.program], game, bias) for game, bias in zip(games, biases, strict=True)
        ]
        self.best = [unpack_best(packed, state["seconds"], self._clock) for packed in state["best"]]
