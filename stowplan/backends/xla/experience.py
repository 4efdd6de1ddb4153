"""Results of earlier programs: how often settings and flags have made similar programs faster.

A *setting* (``knobs``) changes how XLA assigns values to fast memory; a *flag* changes the program before that. A program is
described by features of its default compilation. How often a flag was better on earlier programs counts for a new program,
weighted by the similarity of the two programs, so that tuning begins with flags that have worked before.
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

#: The file that comes with this package; ``benchmarks/xla/tuning.py --learn`` writes it.
SHIPPED = Path(__file__).with_name("experience.json")

#: Width of the Gaussian kernel on the distance of features: at this distance a program counts for 0.61.
_WIDTH = 0.25
#: Factor for programs on another chip.
_OTHER_CHIP = 0.3
#: The tries of a flag, or of settings, on all earlier programs together count as at most this number of tries.
_MOST_TRIES = 6.0
#: Weight of a preview, relative to the result of a flag on an identical program.
_PREVIEW = 0.25


class Improvement(NamedTuple):
    """The share of a program's cycles that a flag or a setting is expected to save."""

    saved: float
    """The expectation if losses count as 0, because the better of both programs is kept."""
    mean: float
    """The expectation with losses."""


class EarlierProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A program that was tuned before."""

    family: str
    """Kind of network. Programs of the same family are left out when the benefit of other programs is measured."""
    target: str
    """Name of the target machine."""
    features: tuple[float, ...]
    """See :meth:`stowplan.backends.xla.evidence.Evidence.features`."""
    ways: dict[str, tuple[int, int]]
    """For ``knobs`` and for each flag: how often it was better than all earlier compilations, and how often it was tried."""
    gains: dict[str, float] = {}
    """The share of the default's cycles that each flag saved by itself, and that the first setting (``knobs``) saved compared
    with the best compilation before it; negative for a loss."""


class Experience(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Results of programs that were tuned before."""

    programs: tuple[EarlierProgram, ...] = ()
    format: str = FORMAT
    version: int = VERSION

    def without(self, families: Collection[str]) -> Experience:
        """Returns these results without programs of some families."""
        return Experience(programs=tuple(program for program in self.programs if program.family not in families))

    def about(self, target: str, features: tuple[float, ...]) -> dict[str, tuple[float, float]]:
        """Returns (wins, tries) of each flag and of ``knobs``, weighted for a program with these features on this target."""
        counts: dict[str, tuple[float, float]] = {}
        for program, weight in self._weighted_programs(target, features):
            for way, (wins, tries) in program.ways.items():
                before = counts.get(way, (0.0, 0.0))
                counts[way] = before[0] + weight * wins, before[1] + weight * tries
        return {
            way: (wins * min(1.0, _MOST_TRIES / tries), min(tries, _MOST_TRIES))
            for way, (wins, tries) in counts.items()
            if tries
        }

    def improvement(self, way: str, target: str, features: tuple[float, ...], promised: float | None) -> Improvement:
        """Returns the share of its cycles that a program with these features is expected to save by a flag or by a setting.

        It is the mean of the savings on earlier programs, weighted by similarity, and of the saving that a preview promises.

        Parameters
        ----------
        way
            Name of the flag; ``knobs`` for the first setting that is compiled.
        target, features
            Name of the program's target, and its :meth:`~stowplan.backends.xla.evidence.Evidence.features`.
        promised
            The saving by the preview; None if previews show nothing about this flag.
        """
        weighted_gains = [] if promised is None else [(_PREVIEW, promised)]
        weighted_gains += [
            (weight, program.gains[way])
            for program, weight in self._weighted_programs(target, features)
            if way in program.gains
        ]
        all_weights = sum(weight for weight, _ in weighted_gains) or 1.0
        saved = sum(weight * max(0.0, gain) for weight, gain in weighted_gains) / all_weights
        return Improvement(saved, sum(weight * gain for weight, gain in weighted_gains) / all_weights)

    def _weighted_programs(self, target: str, features: tuple[float, ...]) -> Iterator[tuple[EarlierProgram, float]]:
        """The earlier programs, each with its similarity to a program with these features."""
        for program in self.programs:
            distance = math.dist(program.features, features) / _WIDTH
            yield program, math.exp(-distance * distance / 2) * (1.0 if program.target == target else _OTHER_CHIP)


@cache
def shipped() -> Experience:
    """The results that come with this package."""
    return Experience.load(SHIPPED)
