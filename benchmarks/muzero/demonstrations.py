"""Demonstrations for a policy of MMapGame: programs to learn from, and good games of them, by several processes.

Programs are windows of modules with other capacities and copy times, whole modules, and made-up ones. A program is named by its
*spec*, (module, number, seed), and made anew from it wherever it is wanted, so that what is kept of a game is its actions.
"""

from __future__ import annotations

import base64
import json
import multiprocessing
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import stowplan
from benchmarks.lib.memory_mapping.constructions import best_guided
from benchmarks.lib.memory_mapping.synthetic import synthetic
from benchmarks.muzero.runs import normalised
from stowplan.learned_guidance.memory_mapping.game.demonstrations import actions_of
from stowplan.learned_guidance.memory_mapping.game.kernel.state import CompiledGame, CompiledState, play_greedy
from stowplan.learned_guidance.memory_mapping.game.local_search import improve
from stowplan.learned_guidance.memory_mapping.game.programs import as_played, training_variants, with_capacity
from stowplan.learned_guidance.memory_mapping.muzero.exploration import draw_bias, play_biased
from stowplan.learned_guidance.memory_mapping.observation.observer import Observer
from stowplan.models.hint import Hint
from stowplan.models.memory_mapping import hint as hints
from stowplan.models.memory_mapping.hint import FAST, KEEP
from stowplan.models.memory_mapping.milp.hint import relaxation_hint
from stowplan.models.memory_mapping.milp.solve import Effort
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.memory_mapping import arrays, heuristics
from stowplan.portfolio.memory_mapping.convert import export_plan

#: Moves of a program, at least and at most; whole modules up to the third number are learned from as well.
FEWEST, MOST, WHOLE = 80, 1200, 2500

#: Made-up programs for each module.
SYNTHETIC_PART = 0.25

#: Every how many-th program of a module is the whole one, in another capacity, where that is short enough.
WHOLE_EVERY = 12

#: Fewer moves than this teach nothing.
LEAST_MOVES = 20

#: Seconds that a program's relaxation may take.
RELAXATION_SECONDS = 5.0

#: Best games of a program that are kept, and places at which the noise of a game may begin.
KEPT, NOISES = 8, 4096

#: Programs of which the number modulo this is 0 are held out.
HELD_OUT = 20


def learned_from(modules: Sequence[Path]) -> list[Path]:
    """Every second module by name."""
    return sorted(modules)[1::2]


@dataclass
class Source:
    """What programs are made of."""

    modules: list[str]
    problems: dict[str, Problem] = field(default_factory=dict)

    @classmethod
    def of(cls, paths: Sequence[Path]) -> Source:
        """The modules that are learned from."""
        found = {path.name.split(".")[0]: as_played(stowplan.read(path, target="tpu-v4")) for path in learned_from(paths)}
        return cls([*found], found)

    def specs(self, seed: int, first: int = 0) -> Iterator[tuple[str, int, int]]:
        """(module or "", number, seed) without end, all modules in turn."""
        kinds = [*self.modules, *[""] * round(SYNTHETIC_PART * len(self.modules))]
        number = first
        while True:
            yield kinds[number % len(kinds)], number, seed
            number += 1

    def make(self, spec: tuple[str, int, int]) -> Problem | None:
        """The program of a spec; None where it has nothing to gain."""
        module, number, seed = spec
        rng = np.random.default_rng([seed, number])
        moves = int(np.exp(rng.uniform(np.log(FEWEST), np.log(MOST))))
        if not module:
            return as_played(synthetic(rng, moves=min(moves, 500)))
        whole = self.problems[module]
        if number // len(self.modules) % WHOLE_EVERY == 0 and whole.use_count <= WHOLE:
            return with_capacity(whole, max(whole.alignment, int(rng.uniform(0.15, 1.3) * whole.capacity) // 1024 * 1024))
        return next(training_variants(whole, rng, moves=moves, count=1), None)


@dataclass
class Demonstrated:
    """A program's best game known, and what is known about it. Rewards are normalised returns."""

    spec: tuple[str, int, int]
    moves: int
    actions: Any
    """(M,) int8"""
    hint: Any
    """(2, accesses) float32: the relaxation's values; None where it was not solved."""
    rewards: dict[str, float]
    others: list[Any] = field(default_factory=list)
    """Actions of worse games, for values."""

    def pack(self) -> str:
        """One line of JSON."""
        record = {
            "spec": self.spec,
            "moves": self.moves,
            "actions": _packed(np.asarray(self.actions, np.uint8)),
            "hint": None if self.hint is None else _packed(np.round(self.hint * 255).astype(np.uint8)),
            "rewards": {name: round(value, 5) for name, value in self.rewards.items()},
        }
        return json.dumps(record)

    @classmethod
    def unpack(cls, line: str) -> Demonstrated:
        """What :meth:`pack` has made, but for the others."""
        record = json.loads(line)
        hint = None if record["hint"] is None else _unpacked(record["hint"]).reshape(2, -1).astype(np.float32) / 255
        actions = _unpacked(record["actions"]).astype(np.int8)
        return cls(tuple(record["spec"]), record["moves"], actions, hint, record["rewards"])


def _packed(array: Any) -> str:
    return base64.b85encode(zlib.compress(array.tobytes(), 9)).decode()


def _unpacked(text: str) -> Any:
    return np.frombuffer(zlib.decompress(base64.b85decode(text)), np.uint8)


def relaxed(problem: Problem, seconds: float) -> Hint | None:
    """The relaxation's values, rounded as they are kept."""
    found, _ = relaxation_hint(problem, Effort(end=time.monotonic() + seconds))
    return None if found is None else hint_of(problem, np.round(values_of(found) * 255) / 255)


def values_of(hint: Hint) -> Any:
    """(2, accesses)"""
    return np.array([hint.values[FAST], hint.values[KEEP]], np.float32)


def hint_of(problem: Problem, values: Any) -> Hint | None:
    """The hint with these values (2, accesses); None for None."""
    return None if values is None else hints.hint(problem, *values.tolist(), source="relaxation")


@dataclass
class Program:
    """A program to demonstrate."""

    spec: tuple[str, int, int]
    problem: Problem
    game: CompiledGame
    hint: Hint | None

    @classmethod
    def of(cls, source: Source, spec: tuple[str, int, int], values: Any = None) -> Program | None:
        """The program of a spec, its hint of these values (2, accesses); None where there is little to decide."""
        problem = source.make(spec)
        if problem is None:
            return None
        game = CompiledGame(problem)
        if len(game.moves) < LEAST_MOVES:
            return None
        hint = relaxed(problem, RELAXATION_SECONDS) if values is None else hint_of(problem, values)
        return cls(spec, problem, game, hint)


def demonstrated(program: Program, pace: float, begin: Sequence[Any] = ()) -> Demonstrated:
    """A good game of a program: random exploration biases, and local search from the best.

    Parameters
    ----------
    pace
        Scales the time.
    begin
        Actions of games to begin with, beside none.
    """
    problem, game = program.problem, program.game
    data = arrays.build(problem)
    constructed = [heuristics.run(built, lambda: False)[0] for _, built in heuristics.constructive(data)]
    best = min(constructed, key=lambda state: state.totals[0].total)
    rewards = {
        "greedy": problem.normalised_return(int(constructed[0].totals[0].total)),
        "insertion": problem.normalised_return(int(best.totals[0].total)),
    }
    plans = [export_plan(problem, data, best)]
    if program.hint is not None:
        guided = best_guided(data, program.hint, lambda: False)
        rewards["guided insertion"] = problem.normalised_return(int(guided.totals[0].total))
        plans.append(export_plan(problem, data, guided))
    greedy, rng = game.reset(), np.random.default_rng(program.spec[1:])
    rewards["greedy game"] = normalised(problem, int(play_greedy(game.tables, greedy.data)))
    elite = Elite(game, rng)
    for actions in (greedy.actions, *(actions_of(problem, plan, game).actions for plan in plans), *begin):
        elite.offer(actions)
    rewards["followed"] = normalised(problem, elite.games[0][0])
    seconds = pace * (0.1 + len(game.moves) / 2000)
    for number, part in enumerate((0.6, 0.2, 0.2)):
        elite.play(part * seconds)
        if not number:
            rewards["biased"] = normalised(problem, elite.games[0][0])
        found = improve(game, elite.games[0][1], time_limit=part * seconds, seed=number)
        elite.offer(found.actions)
    rewards["game"] = normalised(problem, elite.games[0][0])
    values = None if program.hint is None else values_of(program.hint)
    return Demonstrated(
        program.spec, len(game.moves), elite.games[0][1], values, rewards, [np.array(greedy.actions, np.int8), elite.biased()]
    )


def again(program: Program, found: Demonstrated) -> Demonstrated:
    """A game from an earlier round, as :func:`demonstrated` has it."""
    greedy = program.game.reset()
    play_greedy(program.game.tables, greedy.data)
    found.others = [np.array(greedy.actions, np.int8), Elite(program.game, np.random.default_rng(program.spec[1:])).biased()]
    return found


class Elite:
    """The best games of a program, by random exploration biases, half of them from the beginning of one of these."""

    def __init__(self, game: CompiledGame, rng: np.random.Generator):
        self.game, self._rng = game, rng
        self.games: list[tuple[int, Any]] = []
        """(return in ps, one action for each move), the best first."""
        self.played = 0
        self._scales = scales(game)
        self._noise = rng.gumbel(size=(len(game.moves) + NOISES, 3)).astype(np.float32)

    def offer(self, actions: Any) -> None:
        """A whole game."""
        state = self.game.reset()
        state.play(actions)
        self._keep(state)

    def _keep(self, state: CompiledState) -> None:
        found = int(state.return_ps)
        if any(found == known for known, _ in self.games) or (len(self.games) == KEPT and found < self.games[-1][0]):
            return
        self.games.append((found, np.array(state.actions, np.int8)))
        self.games.sort(key=lambda each: -each[0])
        del self.games[KEPT:]

    def play(self, seconds: float) -> None:
        """Games for so many processor seconds."""
        end, rng = time.process_time() + seconds, self._rng
        while time.process_time() < end:
            state = self.game.reset()
            if self.games and rng.random() < 0.5:
                begun = self.games[rng.integers(len(self.games))][1]
                state.play(begun[: rng.integers(len(begun))])
            self._finish(state)
            self._keep(state)
            self.played += 1

    def biased(self) -> Any:
        """One such game from the start; it is not kept."""
        state = self.game.reset()
        self._finish(state)
        return np.array(state.actions, np.int8)

    def _finish(self, state: CompiledState) -> None:
        first = int(self._rng.integers(NOISES))
        noise = self._noise[first : first + len(self.game.moves)]
        play_biased(self.game.tables, state.data, draw_bias(self._rng), noise, *self._scales)


def scales(game: CompiledGame) -> tuple[float, float]:
    """What rewards are compared with."""
    from stowplan.learned_guidance.memory_mapping.observation.layout import ObservationConfig

    return Observer(game, ObservationConfig(map_rows=1, map_columns=1, profile_bins=1, supply_slots=1)).scales


def read(paths: Sequence[Path]) -> list[Demonstrated]:
    """All records of these files."""
    found = []
    for path in paths:
        with path.open() as lines:
            # A process that was stopped may have left half a line.
            found += [Demonstrated.unpack(line) for line in lines if line.endswith("}\n")]
    return found


def in_processes(count: int, work: Any, *arguments: Any) -> None:
    """Run ``work(number, counter, *arguments)`` in so many forked processes, which share a counter."""
    context = multiprocessing.get_context("fork")
    counter = context.Value("q", 0)
    processes = [context.Process(target=work, args=(number, counter, *arguments)) for number in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def take(counter: Any) -> int:
    """The next number."""
    with counter.get_lock():
        counter.value += 1
        return int(counter.value) - 1
