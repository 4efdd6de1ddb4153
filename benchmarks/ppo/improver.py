"""A mapper as an improver of given mappings of large loop bodies, beside annealing at equal evaluations.

    python -m benchmarks.ppo.improver ../shared/dfg [--evaluations 16] [--write]

Begins with list scheduling's mapping, which is put together again at the next smaller initiation interval (II) as far as it
fits. A move takes one instruction out (re-place) or two (swap), besides what does not fit, and the player places them and the
rest again, eight times; the mapping that came furthest is kept. Once all is placed, the next II is tried. An evaluation is as
much work as placing every instruction once; a move of the annealing counts as one placement.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.lib.places import ROOT
from benchmarks.lib.tables import table, write_into
from benchmarks.ppo.runs import Setting, player_of
from stowplan.errors import InputError
from stowplan.learned_guidance.modulo_scheduling.body import Body as Mapped
from stowplan.learned_guidance.modulo_scheduling.rollouts import Player
from stowplan.learned_guidance.modulo_scheduling.state import Mapping
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.portfolio.modulo_scheduling.annealing import Annealing
from stowplan.portfolio.modulo_scheduling.body import Body
from stowplan.portfolio.modulo_scheduling.search import Tally, list_scheduling

PAGE = ROOT / "docs" / "results" / "ppo.md"

#: Instructions of the loop bodies.
LEAST, MOST = 60, 400

#: Copies of a move that are placed side by side.
COPIES = 8

#: Who places.
PLAYERS = ("uniform", "untrained", "ppo")

#: (tile, clock) of instructions by number.
Places = dict[int, tuple[int, int]]


class Partial(Mapping):
    """A mapping with as many instructions on their tiles as fit, each in the first free slot from its clock on."""

    def __init__(self, body: Mapped, ii: int, places: Places):
        super().__init__(body, ii)
        for number, (tile, clock) in places.items():
            name = self.problem.instructions[number].id
            for later in range(ii):
                with suppress(InputError):
                    self._fix(name, tile, (clock + later) % ii)
                    break
        self._advance()

    def places(self) -> Places:
        """Tile and slot of what is placed."""
        return places_of(self)


def places_of(mapping: Mapping) -> Places:
    """Tile and slot of what is placed."""
    pairs = enumerate(zip(mapping.tile.tolist(), mapping.slot.tolist(), strict=True))
    return {number: place for number, place in pairs if place[0] >= 0}


class Improver:
    """Moves on one mapping, placed by a player."""

    def __init__(self, tally: Tally, player: Player, seed: int):
        self.tally, self._player = tally, player
        self._chance = np.random.default_rng(seed)
        self._body = Mapped(tally.body.problem)
        self._known: Places = {}

    def run(self, evaluations: int) -> None:
        """Until so many evaluations are spent, or the bound is reached."""
        tally = self.tally
        while tally.best is not None and tally.best.ii > tally.body.least_ii and tally.evaluations < evaluations:
            ii = tally.best.ii - 1
            best = tally.best
            given = dict(enumerate(zip(best.tiles, best.times, strict=True)))
            self._known = Partial(self._body, ii, given).places()
            while tally.best.ii > ii and tally.evaluations < evaluations:
                self._move(ii)

    def _move(self, ii: int) -> None:
        """One instruction or two taken out, and placed again with the rest."""
        gone = self._chosen(1 + int(self._chance.integers(2)))
        rest = {number: place for number, place in self._known.items() if number not in gone}
        first = Partial(self._body, ii, rest)
        before = first.placed
        copies = [first, *(first.copy() for _ in range(COPIES - 1))]
        found = self._player.place(copies, self._chance)
        self.tally.placements += sum(max(1, each.placed - before) for each in found)
        furthest = max(found, key=lambda each: each.placed)
        if furthest.placed >= len(self._known):
            self._known = places_of(furthest)
        if furthest.current < 0:
            self.tally.offer(ii, furthest.tile.tolist(), furthest.time.tolist())

    def _chosen(self, count: int) -> set[int]:
        """Instructions to take out: every other time near one that has no place."""
        missing = [number for number in range(self.tally.body.count) if number not in self._known]
        near = [value.other for number in missing for value in self.tally.body.values[number] if value.other in self._known]
        pool = near if near and self._chance.random() < 0.5 else sorted(self._known)
        return {int(each) for each in self._chance.choice(pool, size=min(count, len(pool)))}


def anneal(tally: Tally, seed: int, evaluations: float, over: Callable[[], bool]) -> None:
    """Annealing at one interval after the other, each with half of what is left, until one does not succeed twice."""
    failed = 0
    while tally.best is not None and tally.best.ii > tally.body.least_ii and failed < 2 and not over():
        ii, left = tally.best.ii - 1, (evaluations - tally.evaluations) * tally.body.count
        if left < 1:
            return

        def count(moves: int) -> None:
            tally.moves += moves

        moves = int(min(left / 2 if not failed else left, 4_000 * tally.body.count))
        found = Annealing(tally.body, seed + failed).place(ii, max(1, moves), over, count)
        if found is None or not _offered(tally, ii, *found):
            failed += 1


def _offered(tally: Tally, ii: int, tiles: list[int], times: dict[int, int]) -> bool:
    """Whether places, one for each group, came to a plan."""
    from stowplan.models.modulo_scheduling.assemble import list_schedule

    body = tally.body
    each = [tiles[body.structure.group[number]] for number in range(body.count)]
    clocks = list_schedule(body.structure, ii, each, times)
    return clocks is not None and tally.offer(ii, each, clocks)


def begun(problem: Problem) -> Tally:
    """List scheduling's mapping, its work not counted."""
    tally = Tally(Body(problem))
    list_scheduling(tally, 0, lambda: False)
    tally.placements = 0
    return tally


def results(problem: Problem, evaluations: int, seed: int) -> Iterator[tuple[str, int, float]]:
    """(method, II, processor seconds)."""
    slowest = 0.0
    for name in PLAYERS:
        tally, began = begun(problem), time.process_time()
        Improver(tally, player_of(name), seed).run(evaluations)
        took = time.process_time() - began
        slowest = max(slowest, took)
        yield name, _ii(tally), took
    for name, most in (("annealing", float(evaluations)), ("annealing, equal seconds", math.inf)):
        tally, began = begun(problem), time.process_time()
        until = began + slowest
        anneal(tally, seed, most if most < math.inf else 1e12, lambda until=until: time.process_time() > until)  # type: ignore[misc]
        yield name, _ii(tally), time.process_time() - began


def _ii(tally: Tally) -> int:
    return tally.best.ii if tally.best is not None else tally.body.problem.machine.spoke_depth


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("graphs", type=Path, help="folder of suites")
    parser.add_argument("--evaluations", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--least", type=int, default=LEAST, help="instructions of a body")
    parser.add_argument("--count", type=int, default=0, help="bodies at most, small ones first; 0: all")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no body after so many")
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    options = parser.parse_args(argv)
    began = time.monotonic()
    bodies = {each[2].digest: each for each in Setting(least=options.least - 1, most=MOST).graphs(options.graphs)}
    found: dict[str, list[tuple[float, float, float]]] = {}
    done = 0
    for _, name, problem in sorted(bodies.values(), key=lambda each: len(each[2].instructions))[: options.count or None]:
        listed = begun(problem)
        if listed.best is None or listed.best.ii <= listed.body.least_ii:
            continue  # at the bound: nothing to improve
        if time.monotonic() - began > options.seconds:
            break
        done += 1
        line: dict[str, list[int]] = {}
        for seed in range(options.seeds):
            for method, ii, seconds in results(problem, options.evaluations, seed):
                line.setdefault(method, []).append(ii)
                found.setdefault(method, []).append((math.log(ii / listed.body.least_ii), ii < listed.best.ii, seconds))
        found.setdefault("list", []).append((math.log(listed.best.ii / listed.body.least_ii), 0.0, 0.0))
        print(name, len(problem.instructions), f"bound {listed.body.least_ii} list {listed.best.ii}", line, flush=True)
    rows: list[list[Any]] = []
    for method, cells in found.items():
        logs, better, took = zip(*cells, strict=True)
        rows.append([method, f"{math.exp(fmean(logs)):.3f}", f"{fmean(better):.0%}", f"{fmean(took):.1f}"])
    text = table(rows, ("method", "II over the bound", "better than list", "processor seconds"))
    print(f"{done} bodies, {options.evaluations} evaluations, {options.seeds} seeds\n\n{text}")
    if options.write:
        write_into(PAGE, {"ppo improver": text})


if __name__ == "__main__":
    main()
