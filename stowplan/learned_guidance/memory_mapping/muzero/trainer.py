"""Training of MMap-MuZero on one or more programs: self-play and training steps in turn, in one process.

Time goes in *ticks*: one move of all games, or one training step. A training run is a sequence of ticks that depends on
programs, configuration and seed alone; limits only say after which tick to stop, and a checkpoint holds all that the next tick
needs. On a CPU, stopping and resuming therefore changes no bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stowplan.errors import InputError
from stowplan.learned_guidance.memory_mapping.baselines.local_search import improve
from stowplan.learned_guidance.memory_mapping.game.best import Best, Point
from stowplan.learned_guidance.memory_mapping.muzero import checkpoint
from stowplan.learned_guidance.memory_mapping.muzero import exploration_bias as leaning
from stowplan.learned_guidance.memory_mapping.muzero.batches import make_batch
from stowplan.learned_guidance.memory_mapping.muzero.learner import Learner, Losses
from stowplan.learned_guidance.memory_mapping.muzero.model import TorchModel
from stowplan.learned_guidance.memory_mapping.muzero.replay import Replay, Trajectory
from stowplan.learned_guidance.memory_mapping.muzero.self_play import Arena, Opening, SelfPlay, opened, replayed, seat_of
from stowplan.learned_guidance.memory_mapping.muzero.training_config import TrainingConfig
from stowplan.models.memory_mapping.problem import Problem

#: Opening games between two looks at the clock, and every how many of them is remembered in any case.
OPENINGS_AT_ONCE, OPENINGS_KEPT = 16, 32

#: What an opening game costs besides its moves, in moves.
OPENING_COST = 300

Outcome = Literal["steps_done", "time_limit", "stopped"]


@dataclass(frozen=True)
class Progress:
    """What an iteration came to."""

    iteration: int
    seconds: float
    """Of training, earlier runs included."""
    games: int
    """Finished since the beginning; so are the two below."""
    moves: int
    training_steps: int
    best: float
    """Normalised return of the best game, in the mean over programs that have one; NaN before."""
    mean: float
    """Normalised return of the games that this iteration finished, in the mean; NaN without any."""
    losses: Losses | None
    """Means of this iteration; None without training steps."""
    temperature: float
    moves_per_second: float
    """Of self-play alone."""
    updates_per_second: float
    """Of training steps alone."""


class Trainer:
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
        If a program has no moves.
    """

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
        self.config = config
        self.seed = seed
        self.arenas = [Arena(problem, config) for problem in problems]
        self.learner = Learner(config, seed, device)
        if weights is not None:
            self.learner.load(weights)
        self.replay = Replay(config, len(self.arenas))
        self._model = TorchModel(self.learner.network)
        self._target_model = TorchModel(self.learner.target)
        self._clock = clock
        self.best = [Best(clock=clock) for _ in self.arenas]
        """Best game of each program."""
        self.games = self.moves = self.openings = 0
        self.ticks = 0
        self._began = clock()
        self._play_rng, self._opening_rng, self._learning_rng = (np.random.default_rng([seed, number]) for number in range(3))
        self._self_play = SelfPlay(self.arenas, config, self._opening)
        self._iteration = _Tally()

    @property
    def seconds(self) -> float:
        """Spent training, earlier runs included."""
        return self._clock() - self._began

    @property
    def iteration(self) -> int:
        """Whole iterations done."""
        return self.ticks // self.ticks_per_iteration

    @property
    def is_opening(self) -> bool:
        """Whether the opening games are still being played; they belong to no iteration."""
        return self.openings < self.config.opening_moves

    @property
    def ticks_per_iteration(self) -> int:
        """Moves and training steps of an iteration."""
        return self.config.moves_per_iteration + self.config.updates_per_iteration

    def demonstrate(self, program: int, actions: Sequence[int] | NDArray[np.integer[Any]]) -> None:
        """Learn from a game that was played elsewhere; ValueError where it is not a whole game of legal actions."""
        self._remember(program, np.array(actions, np.int8), is_demonstration=True)

    def run(
        self,
        *,
        time_limit: float | None = None,
        should_stop: Callable[[], bool] | None = None,
        max_iterations: int | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        save_to: str | Path | None = None,
        save_every: float = 60.0,
    ) -> Outcome:
        """Train until the configured steps are done, or a limit stops it.

        Parameters
        ----------
        time_limit
            Seconds from now.
        should_stop
            Asked before each tick.
        max_iterations
            Of this run.
        on_progress
            Called after each iteration.
        save_to
            Where to write a checkpoint: every ``save_every`` seconds, after whole iterations, and at the end.
        """
        began = saved = self._clock()
        outcome: Outcome = "steps_done"
        iterations = 0
        while self.learner.steps < self.config.training_steps:
            if time_limit is not None and self._clock() - began >= time_limit:
                outcome = "time_limit"
                break
            if (should_stop is not None and should_stop()) or iterations == max_iterations:
                outcome = "stopped"
                break
            was_opening = self.is_opening
            self.tick()
            if not was_opening and self.ticks % self.ticks_per_iteration == 0:
                iterations += 1
                if on_progress is not None:
                    on_progress(self._progress())
                self._iteration = _Tally()
                if save_to is not None and self._clock() - saved >= save_every:
                    self.save(save_to)
                    saved = self._clock()
        if save_to is not None:
            self.save(save_to)
        return outcome

    def tick(self) -> None:
        """One move of all games, or one training step; at the very beginning, one of the opening games."""
        began = self._clock()
        if self.is_opening:
            self._open()
            if self.config.mend_moves and not self.is_opening:
                self._mend()
            return
        if self.ticks % self.ticks_per_iteration < self.config.moves_per_iteration:
            self._play()
            self._iteration.play_seconds += self._clock() - began
        elif self._may_learn():
            self._learn()
            self._iteration.learn_seconds += self._clock() - began
        self.ticks += 1
        if self.config.mend_moves and self.ticks % self.ticks_per_iteration == 0:
            self._mend()

    def _may_learn(self) -> bool:
        return self.games + len(self.replay.demonstrations) >= self.config.warm_up_games and len(self.replay) > 0

    def _play(self) -> None:
        if not self._self_play.seats:
            self._self_play.start()
        for game in self._self_play.advance(self._model, self.learner.steps, self._play_rng):
            self._keep(game)
        self.moves += self.config.games
        self._iteration.moves += self.config.games

    def _open(self) -> None:
        """A few of the opening games; of those that are none of the best, some are remembered."""
        for _ in range(OPENINGS_AT_ONCE):
            opening = self._opening(is_leaning=True)
            arena = self.arenas[opening.program]
            state = opened(arena, opening, self._opening_rng)
            self.games += 1
            self.openings += len(arena.game.moves) + OPENING_COST
            self.best[opening.program].games += 1
            if self.games % OPENINGS_KEPT == 0 or self.replay.is_elite(opening.program, state.return_ps):
                self._remember(opening.program, np.array(state.actions, np.int8))

    def _mend(self) -> None:
        """Local search from one of the best games of a program, drawn evenly; what it finds is one of them, if it is better."""
        rng = self._opening_rng
        program = int(rng.integers(len(self.arenas)))
        games = self.replay.elite[program]
        if not games:
            return
        game = games[int(rng.integers(len(games)))]
        arena = self.arenas[program]
        state = arena.game.reset()
        state.play(game.actions)
        seed = int(rng.integers(2**31))
        rounds = max(1, self.config.mend_moves // len(arena.game.moves))
        found = improve(arena.game, state.actions, rounds=rounds, seed=seed)
        if found.actions is not None and found.return_ps is not None and self.replay.is_elite(program, found.return_ps):
            self._remember(program, np.array(found.actions, np.int8))

    def _remember(self, program: int, actions: NDArray[np.int8], *, is_demonstration: bool = False) -> None:
        """Learn from a game that was played without search; it has been counted, or is not the agent's own."""
        arena = self.arenas[program]
        game = replayed(arena, program, actions, self.config.discount, is_demonstration=is_demonstration)
        self.replay.add(game)
        self.best[program].offer(game.return_ps, game.actions, games=0)

    def _keep(self, game: Trajectory) -> None:
        """Remember a finished game."""
        self.replay.add(game)
        self.games += 1
        self.best[game.program].offer(game.return_ps, game.actions)
        self._iteration.returns.append(self.arenas[game.program].normalised(game.return_ps))

    def _learn(self) -> None:
        rng = self._learning_rng
        sample = self.replay.sample(self.config.batch_size, rng)
        batch = make_batch(sample, self.arenas, self.config, self._target_model, rng)
        losses, errors = self.learner.update(batch)
        self.replay.update(sample, errors)
        self._iteration.losses.append(losses)

    def _opening(self, is_leaning: bool = False) -> Opening:
        """A program, drawn evenly; now and then with the beginning of a good game of it, or with a leaning."""
        rng, config = self._opening_rng, self.config
        program = int(rng.integers(len(self.arenas)))
        taste = leaning.NONE
        if is_leaning or (config.leaning_fraction > 0 and rng.random() < config.leaning_fraction):
            taste = leaning.draw(rng)
        if config.restart_fraction > 0 and rng.random() < config.restart_fraction:
            games = [*self.replay.elite[program], *(game for game in self.replay.demonstrations if game.program == program)]
            if games:
                game = games[int(rng.integers(len(games)))]
                return Opening(program, game.actions[: int(rng.integers(len(game)))], taste)
        return Opening(program, np.empty(0, np.int8), taste)

    def _progress(self) -> Progress:
        tally = self._iteration
        best = [
            arena.normalised(best.return_ps)
            for arena, best in zip(self.arenas, self.best, strict=True)
            if best.return_ps is not None
        ]
        return Progress(
            iteration=self.iteration,
            seconds=self.seconds,
            games=self.games,
            moves=self.moves,
            training_steps=self.learner.steps,
            best=_mean(best),
            mean=_mean(tally.returns),
            losses=Losses(*(_mean(list(each)) for each in zip(*tally.losses, strict=True))) if tally.losses else None,
            temperature=self.config.temperature(self.learner.steps),
            moves_per_second=tally.moves / max(tally.play_seconds, 1e-9),
            updates_per_second=len(tally.losses) / max(tally.learn_seconds, 1e-9),
        )

    # Files

    def provenance(self) -> checkpoint.Provenance:
        """Where the network comes from."""
        return checkpoint.Provenance(
            programs=tuple(arena.problem.name for arena in self.arenas),
            digests=tuple(arena.problem.digest for arena in self.arenas),
            seed=self.seed,
            training_steps=self.learner.steps,
            games=self.games,
            moves=self.moves,
            seconds=round(self.seconds, 3),
            versions={name: metadata.version(name) for name in ("stowplan", "torch", "numpy", "numba")},
        )

    def save_policy(self, path: str | Path) -> str:
        """Write the network by itself, to play with; the file's sha256."""
        return checkpoint.save_policy(path, self.config, self.learner.network.state_dict(), self.provenance())

    def save(self, path: str | Path) -> None:
        """Write a checkpoint."""
        learner, replay = self.learner, self.replay
        values = {
            "config": self.config.to_json(),
            "programs": [arena.problem.name for arena in self.arenas],
            "digests": [arena.problem.digest for arena in self.arenas],
            "seed": self.seed,
            "counters": [self.ticks, self.games, self.moves, self.openings, learner.steps],
            "seconds": self.seconds,
            "network": learner.network.state_dict(),
            "target": learner.target.state_dict(),
            "optimizer": learner.optimizer.state_dict(),
            "generators": [checkpoint.pack_generator(each) for each in (self._play_rng, self._opening_rng, self._learning_rng)],
            "recent": checkpoint.pack_games(replay.recent),
            "priorities": checkpoint.pack_arrays(replay.priorities),
            "next_slot": replay.next_slot,
            "elite": [checkpoint.pack_games(games) for games in replay.elite],
            "demonstrations": checkpoint.pack_games(replay.demonstrations),
            "seats": checkpoint.pack_games([seat.trajectory(self.config.discount) for seat in self._self_play.seats]),
            "leanings": checkpoint.pack_arrays([seat.leaning for seat in self._self_play.seats]),
            "best": [_pack_best(best) for best in self.best],
        }
        checkpoint.save(path, checkpoint.CHECKPOINT_FORMAT, values)

    @classmethod
    def resume(
        cls,
        path: str | Path,
        problems: Sequence[Problem],
        *,
        device: str = "cpu",
        changes: dict[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Trainer:
        """Go on from a checkpoint; ``problems`` must be those it was made with.

        Parameters
        ----------
        changes
            Fields of the configuration to change: how long to train, not how.

        Raises
        ------
        InputError
            If the file is no checkpoint, is damaged or of another version, or is of other programs.
        """
        values, _ = checkpoint.load(path, checkpoint.CHECKPOINT_FORMAT)
        config = checkpoint.read_config(values.get("config"), path)
        found = values.get("digests")
        if found != [problem.digest for problem in problems]:
            names = ", ".join(map(str, values.get("programs", ())))
            raise InputError(f"made with other programs ({names}), expected the same, in the same order", source=path)
        try:
            trainer = cls(problems, config.changed(**(changes or {})), seed=values["seed"], device=device, clock=clock)
            trainer._restore(values)
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise InputError(f"damaged checkpoint: {error}", source=path) from error
        return trainer

    def _restore(self, values: dict[str, Any]) -> None:
        learner, discount = self.learner, self.config.discount
        self.ticks, self.games, self.moves, self.openings, learner.steps = values["counters"]
        self._began = self._clock() - values["seconds"]
        learner.network.load_state_dict(values["network"])
        learner.target.load_state_dict(values["target"])
        learner.optimizer.load_state_dict(values["optimizer"])
        self._play_rng, self._opening_rng, self._learning_rng = map(checkpoint.unpack_generator, values["generators"])
        recent = checkpoint.unpack_games(values["recent"], discount)
        self.replay.restore(recent, checkpoint.unpack_arrays(values["priorities"]), values["next_slot"])
        self.replay.elite = [checkpoint.unpack_games(games, discount) for games in values["elite"]]
        self.replay.demonstrations = checkpoint.unpack_games(values["demonstrations"], discount)
        games = checkpoint.unpack_games(values["seats"], discount)
        leanings = checkpoint.unpack_arrays(values["leanings"])
        self._self_play.seats = [
            seat_of(self.arenas[game.program], game, taste) for game, taste in zip(games, leanings, strict=True)
        ]
        self.best = [_unpack_best(packed, values["seconds"], self._clock) for packed in values["best"]]


class _Tally:
    """What is counted of one iteration."""

    def __init__(self) -> None:
        self.returns: list[float] = []
        self.losses: list[Losses] = []
        self.moves = 0
        self.play_seconds = self.learn_seconds = 0.0


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _pack_best(best: Best) -> dict[str, Any]:
    return {
        "games": best.games,
        "return_ps": best.return_ps,
        "actions": None if best.actions is None else best.actions.tolist(),
        "points": [[point.seconds, point.games, point.return_ps] for point in best.points],
    }


def _unpack_best(packed: dict[str, Any], seconds: float, clock: Callable[[], float]) -> Best:
    best = Best(seconds_before=seconds, games_before=packed["games"], clock=clock)
    best.return_ps = packed["return_ps"]
    best.actions = None if packed["actions"] is None else np.array(packed["actions"], np.int8)
    best.points = [Point(*point) for point in packed["points"]]
    return best
