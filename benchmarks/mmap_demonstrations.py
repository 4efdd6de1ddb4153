"""Demonstrations for a policy of MMapGame: programs to learn from, and good games of them, by several processes.

Programs are windows of modules with other capacities and copy times, whole modules, and made-up ones. A program is named by its
*spec*, (module, number, seed), and made anew from it wherever it is wanted, so that what is kept of a game is its actions.
"""

from __future__ import annotations

import base64
import gzip
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
from stowplan.learned_guidance.memory_mapping.baselines.local_search import improve
from stowplan.learned_guidance.memory_mapping.game.demonstrations import actions_of
from stowplan.learned_guidance.memory_mapping.game.kernel import CompiledGame
from stowplan.learned_guidance.memory_mapping.game.kernel.play import play_greedy
from stowplan.learned_guidance.memory_mapping.game.synthetic import synthetic
from stowplan.learned_guidance.memory_mapping.game.variants import as_played, training_variants, with_capacity
from stowplan.learned_guidance.memory_mapping.muzero import exploration_bias
from stowplan.learned_guidance.memory_mapping.muzero.exploration_bias import play_biased
from stowplan.learned_guidance.memory_mapping.observation.observer import Observer
from stowplan.models.hint import Hint
from stowplan.models.memory_mapping import hint as hints
from stowplan.models.memory_mapping.hint import FAST, KEEP
from stowplan.models.memory_mapping.milp.guide import relaxation_hint
from stowplan.models.memory_mapping.milp.solve import Effort
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.memory_mapping import arrays, heuristics
from stowplan.portfolio.memory_mapping.candidates import LOSS
from stowplan.portfolio.memory_mapping.convert import export_best
from stowplan.portfolio.memory_mapping.guided import best_guided
from stowplan.portfolio.memory_mapping.search import new_search, restart, ruin_and_recreate

#: Moves of a program, at least and at most; whole modules up to the third number are learned from as well.
FEWEST, MOST, WHOLE = 80, 1200, 2500

#: Made-up programs for each module.
SYNTHETIC_PART = 0.25

#: Every how many-th program of a module is the whole one, in another capacity, where that is short enough.
WHOLE_EVERY = 12

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


def demonstrated(spec: tuple[str, int, int], problem: Problem, pace: float) -> Demonstrated | None:
    """A good game of a program: plans with and without the relaxation, ruin and recreate, local search. ``pace`` scales time."""
    game = CompiledGame(problem)
    if len(game.moves) < 20:
        return None
    seconds = pace * (0.1 + len(game.moves) / 2000)
    hint = relaxed(problem, 20 * seconds)
    data = arrays.build(problem)
    constructed = [heuristics.run(built, lambda: False)[0] for _, built in heuristics.constructive(data)]
    rewards = {"greedy": normalised(problem, constructed[0].totals[0].total)}
    states = sorted(constructed, key=lambda each: each.totals[0].total)
    rewards["insertion"] = normalised(problem, states[0].totals[0].total)
    begins = [states[0]]
    if hint is not None:
        begins.append(best_guided(data, hint, lambda: False))
        rewards["guided"] = normalised(problem, begins[-1].totals[0].total)
    best = None
    for number, state in enumerate(begins):
        search = new_search(data, state, heuristics.densities(data, 1), number)
        floor, started, began = problem.floor_ps, int(search.status[0].best), time.process_time()
        while (gone := (time.process_time() - began) / seconds) < 1.0:
            ruin_and_recreate(data, state, search, 10, LOSS * (started - floor) * (1.0 - gone) ** 2)
        plan = export_best(problem, data, search)
        rewards["plan"] = max(rewards.get("plan", 0.0), problem.normalised_return(plan.objective_ps))
        found = improve(game, actions_of(problem, plan, game).actions, time_limit=seconds)
        if best is None or found.return_ps > best.return_ps:
            best = found
    assert best is not None
    greedy, rng = game.reset(), np.random.default_rng(spec[1:])
    rewards["greedy_game"] = game_reward(problem, int(play_greedy(game.tables, greedy.data)))
    rewards["game"] = game_reward(problem, int(best.return_ps))
    others = [np.array(greedy.actions, np.int8), biased_game(game, rng)]
    values = None if hint is None else values_of(hint)
    return Demonstrated(spec, len(game.moves), np.array(best.actions, np.int8), values, rewards, others)


def biased_game(game: CompiledGame, rng: np.random.Generator) -> Any:
    """Actions of a game by a random exploration bias."""
    state = game.reset()
    mean, density = scales(game)
    noise = rng.gumbel(size=(len(game.moves), 3)).astype(np.float32)
    play_biased(game.tables, state.data, exploration_bias.draw(rng), noise, mean, density)
    return np.array(state.actions, np.int8)


def scales(game: CompiledGame) -> tuple[float, float]:
    """What rewards are compared with."""
    from stowplan.learned_guidance.memory_mapping.observation.config import ObservationConfig

    return Observer(game, ObservationConfig(map_rows=1, map_columns=1, profile_bins=1, supply_slots=1)).scales


def normalised(problem: Problem, objective: float) -> float:
    """R of an objective."""
    return problem.normalised_return(int(objective))


def game_reward(problem: Problem, return_ps: int) -> float:
    """R of a game's return."""
    return problem.normalised_return(problem.all_slow_ps - return_ps)


def read(paths: Sequence[Path]) -> list[Demonstrated]:
    """All records of these files."""
    found = []
    for path in paths:
        opened = gzip.open(path, "rt") if path.suffix == ".gz" else path.open()
        with opened as lines:
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
