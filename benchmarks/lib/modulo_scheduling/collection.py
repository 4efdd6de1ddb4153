"""Graphs of the literature, suite by suite, to train policies on some and to judge them on others."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from stowplan.errors import InputError
from stowplan.frontends.dfg import LoopOptions, open_loop_body
from stowplan.frontends.dfg.lower import Inputs
from stowplan.models.modulo_scheduling.problem import Problem, Rules

#: How files of graphs end.
SUFFIXES = (".json", ".dot", ".gv")

#: Rounds of the digest of a graph's shape: nodes that differ further away than that count as alike.
_ROUNDS = 6


@dataclass(frozen=True)
class Split:
    """One suite left out."""

    suite: str
    training: tuple[Problem, ...]
    """Those of the other suites, without any whose graph is among the held-out ones."""
    held_out: tuple[Problem, ...]


@dataclass(frozen=True)
class Collection:
    """Problems by the name of their suite, sorted by size."""

    suites: dict[str, tuple[Problem, ...]]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All of them."""
        return tuple(problem for suite in self.suites.values() for problem in suite)

    def without(self, suite: str) -> Split:
        """Leave one suite out; InputError where there is none of this name."""
        if suite not in self.suites:
            raise InputError(f"found the suite {suite!r}, expected one of {', '.join(self.suites)}")
        held_out = self.suites[suite]
        known = {shape_digest(problem) for problem in held_out}
        rest = (problem for name, problems in self.suites.items() if name != suite for problem in problems)
        return Split(suite, tuple(problem for problem in rest if shape_digest(problem) not in known), held_out)

    def splits(self) -> Iterator[Split]:
        """Each suite left out in turn, but those that are empty."""
        return (self.without(suite) for suite, problems in self.suites.items() if problems)


def read_collection(
    folder: str | Path, target: str | Path = "se", *, inputs: Inputs = "instructions", rules: Rules | None = None
) -> Collection:
    """All graphs below a folder; its subfolders are the suites, and what lies in the folder itself is a suite of its name.

    Parameters
    ----------
    target
        Name of a machine, or path of its file.
    inputs
        What becomes of loads, inputs and constants that nothing leads to: instructions, as in the tables of the suites, or
        variables (see ``docs/reference/loop-bodies.md``).

    Raises
    ------
    InputError
        No graphs; or what is wrong with one, and where.
    """
    root = Path(folder)
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.suffix.lower() in SUFFIXES]
    if not files:
        raise InputError(f"found no graphs (*{', *'.join(SUFFIXES)}), expected some", source=folder)
    suites: dict[str, list[Problem]] = {}
    for path in files:
        name = path.relative_to(root).parts[0] if path.parent != root else root.name
        suites.setdefault(name, []).append(_read(path, path.stat().st_mtime_ns, target, inputs, rules or Rules()))
    return Collection({name: tuple(sorted(each, key=lambda one: len(one.instructions))) for name, each in suites.items()})


@lru_cache(maxsize=1024)
def _read(path: Path, age: int, target: str | Path, inputs: Inputs, rules: Rules) -> Problem:
    """A file's problem; ``age`` makes a file that was changed another."""
    return open_loop_body(path, target, LoopOptions(rules=rules, inputs=inputs))


def shape_digest(problem: Problem) -> str:
    """Equal for equal graphs, whatever ids, ops and the order of instructions are (after Weisfeiler and Leman 1968)."""
    count = len(problem.instructions)
    around: list[list[tuple[int, str]]] = [[] for _ in range(count)]
    for edge in problem.edges:
        around[edge.source].append((edge.target, f"to {edge.distance}"))
        around[edge.target].append((edge.source, f"from {edge.distance}"))
    labels = [""] * count
    for _ in range(_ROUNDS):
        labels = [
            _digest(f"{labels[number]} {sorted(f'{way} {labels[other]}' for other, way in around[number])}")
            for number in range(count)
        ]
    return _digest(str(sorted(Counter(labels).items())))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
