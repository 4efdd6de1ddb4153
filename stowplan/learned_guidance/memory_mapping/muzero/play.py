"""Playing with a trained policy: the likeliest game, many games drawn at a temperature, or games with tree search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, get_args

import numpy as np
from numpy.typing import NDArray

from stowplan.learned_guidance.mcts.search import search
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame
from stowplan.learned_guidance.memory_mapping.game.game import Placing
from stowplan.learned_guidance.memory_mapping.muzero.checkpoint import POLICY
from stowplan.learned_guidance.memory_mapping.muzero.config import TrainingConfig
from stowplan.learned_guidance.memory_mapping.muzero.network import MMapNetwork, TorchModel
from stowplan.learned_guidance.memory_mapping.muzero.self_play import ProgramGame, as_f32, first_rows
from stowplan.learned_guidance.memory_mapping.observation.layout import Observations, empty_observations
from stowplan.learned_guidance.training.checkpoint import Content, load_policy
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem

Stop = Callable[[], bool]
#: Chooses actions at B positions: maps observations, legal actions and numbers of the games to actions, and to values in units
#: of the game.
Chooser = Callable[[Observations, NDArray[np.bool_], NDArray[np.intp]], tuple[NDArray[np.int64], NDArray[Any]]]

#: Temperature at which :meth:`Policy.best_rollout` draws actions.
NEAR = 0.3


@dataclass(frozen=True, eq=False)
class Played:
    """A finished game."""

    actions: NDArray[np.int8]
    """The actions in the order of play, including those that Drop-backup took back."""
    return_ps: int
    """Return of the game in ps: the latency that its plan saves."""
    plan: Plan
    estimates: tuple[tuple[int, float, int], ...] = ()
    """For each move its number, the value of the position before it in units of the game, and the return so far in ps.

    Moves that Drop-backup took back have no entry.
    """


class Policy:
    """A trained network that can play any program.

    Parameters
    ----------
    file
        Configuration and provenance. :meth:`load` reads them, and the network, from a policy file.
    network
        The trained network.
    device
        ``"cpu"`` or ``"cuda"``.
    """

    def __init__(self, file: Content[TrainingConfig], network: MMapNetwork, device: str = "cpu"):
        self.config, self.file = file.config, file
        self.model = TorchModel(network.to(device).eval())
        """The network in the form that tree search uses."""

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> Self:
        """Read a policy file.

        Parameters
        ----------
        device
            Torch device of the network: ``cpu``, ``cuda`` ...

        Raises
        ------
        InputError
            If it is not a policy file, is damaged or of another version, or its weights do not fit its sizes.
        """
        return cls(*load_policy(path, POLICY), device)

    def rollout(self, problem: Problem | CompiledGame, *, should_stop: Stop | None = None) -> Played | None:
        """Play one game of the likeliest legal actions; return None if ``should_stop``, which is called between moves, returned
        true."""
        games = [ProgramGame(problem, self.config)]
        return next(iter(self.play(games, temperatures=np.zeros(1), should_stop=should_stop)), None)

    def best_rollout(
        self, problem: Problem, *, drawn: int = 0, seed: int = 0, should_stop: Stop | None = None
    ) -> Played | None:
        """Play games with each placement rule (:data:`~stowplan.learned_guidance.memory_mapping.game.game.Placing`) and return
        the best; return None if they were stopped.

        On some programs the paper's rule, the lowest free offset, splits fast memory so that large buffers no longer fit. A
        game is also drawn at random because one early mistake of the likeliest actions may use up the time of the copy channel
        that large buffers need.

        Parameters
        ----------
        drawn
            Number of games for each rule whose actions are drawn at temperature :data:`NEAR`, seeded by ``seed``, in addition
            to one game of the likeliest actions.
        should_stop
            Called between moves; if it returns true, playing stops.
        """
        games = [ProgramGame(CompiledGame(problem, placing=placing), self.config) for placing in get_args(Placing)]
        temperatures = np.repeat([0.0, *[NEAR] * drawn], len(games))
        played = self.play(games * (1 + drawn), temperatures=temperatures, seed=seed, should_stop=should_stop)
        return max(played, key=lambda game: game.return_ps, default=None)

    def rollouts(
        self,
        problem: Problem | CompiledGame,
        count: int,
        *,
        temperature: float = 1.0,
        seed: int = 0,
        should_stop: Stop | None = None,
    ) -> list[Played]:
        """Play games side by side, with actions drawn from the policy.

        Parameters
        ----------
        count
            Number of games.
        temperature
            Divides the logits: 1 draws from the policy itself, smaller values favour its likeliest actions.
        should_stop
            Called between moves; if it returns true, playing stops.

        Returns
        -------
        list
            ``count`` games; an empty list if they were stopped before their end.
        """
        games = [ProgramGame(problem, self.config)] * count
        return self.play(games, temperatures=np.full(count, temperature), seed=seed, should_stop=should_stop)

    def play(
        self,
        games: Sequence[ProgramGame],
        *,
        temperatures: NDArray[np.floating[Any]],
        seed: int = 0,
        should_stop: Stop | None = None,
    ) -> list[Played]:
        """Play games of any programs side by side, with actions drawn from the policy.

        Parameters
        ----------
        games
            The programs to play, one for each of N games.
        temperatures
            (N,) temperature of the draws in each game. At 0 the likeliest action is played.
        seed
            Seed of the draws.
        should_stop
            Called between moves; if it returns true, playing stops.

        Returns
        -------
        list
            N games; an empty list if they were stopped before their end.
        """
        rng = np.random.default_rng(seed)
        divisors = np.maximum(temperatures, 1e-6)[:, None]
        is_drawn = (temperatures > 0)[:, None]

        def drawn(
            observations: Observations, legal: NDArray[np.bool_], numbers: NDArray[np.intp]
        ) -> tuple[NDArray[np.int64], NDArray[Any]]:
            _, logits, values = self.model.initial(observations)
            weights = as_f32(logits).astype(np.float64)
            # The largest of log probability and Gumbel noise is a draw from the distribution.
            if temperatures.any():
                weights = weights / divisors[numbers] + np.where(is_drawn[numbers], rng.gumbel(size=legal.shape), 0.0)
            return np.asarray(np.where(legal, weights, -np.inf).argmax(axis=1), np.int64), values

        return self._play(games, drawn, should_stop)

    def searched(
        self,
        problem: Problem | CompiledGame,
        *,
        count: int = 1,
        simulations: int | None = None,
        explore: bool = False,
        seed: int = 0,
        should_stop: Stop | None = None,
    ) -> list[Played]:
        """Play games side by side, with a tree search for each move. Without exploration in the search all games are equal.

        Parameters
        ----------
        count
            Number of games.
        simulations
            Simulations for each move; None for the number that the policy was trained with.
        explore
            Whether the search adds noise at its root.
        should_stop
            Called between moves; if it returns true, playing stops.

        Returns
        -------
        list
            ``count`` games; an empty list if they were stopped before their end.

        Raises
        ------
        UsageError
            ``simulations`` is less than 1.
        """
        rng = np.random.default_rng(seed)
        config = self.config.search_at(self.file.provenance.training_steps)
        if simulations is not None:
            config = config.changed(simulations=simulations)

        game = ProgramGame(problem, self.config)

        def choose(
            observations: Observations, legal: NDArray[np.bool_], numbers: NDArray[np.intp]
        ) -> tuple[NDArray[np.int64], NDArray[Any]]:
            searched = search(self.model, observations, legal, config, rng, explore=explore)
            return searched.action, searched.value

        return self._play([game] * count, choose, should_stop)

    def _play(self, games: Sequence[ProgramGame], choose: Chooser, should_stop: Stop | None) -> list[Played]:
        """Play games side by side with the actions that ``choose`` returns; an empty list if they were stopped."""
        states = [program_game.game.reset() for program_game in games]
        played: list[list[int]] = [[] for _ in states]
        estimates: list[dict[int, tuple[float, int]]] = [{} for _ in states]
        observations = empty_observations(self.config.network.observation, len(games))
        while running := [number for number, state in enumerate(states) if not state.is_over]:
            if should_stop is not None and should_stop():
                return []
            for row, number in enumerate(running):
                games[number].observer.observe(states[number], observations, row)
            seen = first_rows(observations, len(running))
            legal = np.array([states[number].legal for number in running], np.bool_)
            actions, values = choose(seen, legal, np.array(running))
            for number, action, value in zip(running, actions.tolist(), values.tolist(), strict=True):
                state = states[number]
                # A position that Drop-backup returns to is overwritten.
                estimates[number][state.position] = value, state.return_ps
                played[number].append(action)
                state.step(action)
        return [
            Played(np.array(moves, np.int8), state.return_ps, state.plan(), tuple((at, *pair) for at, pair in pairs.items()))
            for state, moves, pairs in zip(states, played, estimates, strict=True)
        ]
