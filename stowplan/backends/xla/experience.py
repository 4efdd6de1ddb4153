"""What earlier programs taught: how often settings, and which flags, made programs like this one faster.

A program is described by what its default compile shows. A flag counts for a new program as often as it won on earlier ones,
each weighed by how alike both are, so that the loop begins where those succeeded.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from stowplan.document import Document

FORMAT = "stowplan.xla.experience"
VERSION = 1

#: What comes with the package, written by ``benchmarks/xla/tuning.py --learn``.
SHIPPED = Path(__file__).with_name("experience.json")

#: Distance of features at which a program counts for less than two thirds.
_WIDTH = 0.25
#: What a program on another chip counts for.
_OTHER_CHIP = 0.3
#: Tries that all earlier programs together count for, at most, for each way.
_MOST_TRIES = 6.0
#: What a preview counts for beside what a flag saved on a program just like this one.
_PREVIEW = 0.25


class Improvement(NamedTuple):
    """Part of a program's cycles that a flag, or a setting, is expected to save."""

    saved: float
    """Losses count nothing: whoever tries it keeps the better one."""
    mean: float
    """Losses count as such."""


class EarlierProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A program that was tuned before."""

    family: str
    """Kind of network: what is left out to measure what others teach."""
    target: str
    features: tuple[float, ...]
    """See :meth:`stowplan.backends.xla.evidence.Evidence.features`."""
    ways: dict[str, tuple[int, int]]
    """For ``knobs`` and each flag how often it was better than all before, and how often it was tried."""
    gains: dict[str, float] = {}
    """Part of the default's cycles that each flag saved by itself, and the first ``knobs`` against the best before it; below 0
    where it cost some."""


class Experience(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Programs that were tuned before."""

    programs: tuple[EarlierProgram, ...] = ()
    format: str = FORMAT
    version: int = VERSION

    def without(self, families: Collection[str]) -> Experience:
        """All but some families."""
        return Experience(programs=tuple(program for program in self.programs if program.family not in families))

    def about(self, target: str, features: tuple[float, ...]) -> dict[str, tuple[float, float]]:
        """Wins and tries of each way, as if it had been tried on a program with these features."""
        counts: dict[str, tuple[float, float]] = {}
        for program, weight in self._weighed(target, features):
            for way, (wins, tries) in program.ways.items():
                before = counts.get(way, (0.0, 0.0))
                counts[way] = before[0] + weight * wins, before[1] + weight * tries
        return {
            way: (wins * min(1.0, _MOST_TRIES / tries), min(tries, _MOST_TRIES))
            for way, (wins, tries) in counts.items()
            if tries
        }

    def improvement(self, way: str, target: str, features: tuple[float, ...], promised: float | None) -> Improvement:
        """What a flag, or the first setting, is expected to save of a program with these features.

        Means over what a preview promises, where that says anything, and what it saved on earlier programs, each weighed by
        how alike both are.
        """
        weighed = [] if promised is None else [(_PREVIEW, promised)]
        weighed += [(weight, program.gains[way]) for program, weight in self._weighed(target, features) if way in program.gains]
        all_weights = sum(weight for weight, _ in weighed) or 1.0
        saved = sum(weight * max(0.0, gain) for weight, gain in weighed) / all_weights
        return Improvement(saved, sum(weight * gain for weight, gain in weighed) / all_weights)

    def _weighed(self, target: str, features: tuple[float, ...]) -> Iterator[tuple[EarlierProgram, float]]:
        for program in self.programs:
            apart = math.dist(program.features, features) / _WIDTH
            yield program, math.exp(-apart * apart / 2) * (1.0 if program.target == target else _OTHER_CHIP)


@cache
def shipped() -> Experience:
    """What comes with the package."""
    return Experience.load(SHIPPED)
