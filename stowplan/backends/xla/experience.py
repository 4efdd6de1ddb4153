"""Results of earlier programs: how often settings and flags have made similar programs faster.

A *setting* (``knobs``) changes how XLA assigns values to fast memory; a *flag* changes the program before that. The *default*
is the compilation without either. A *preview* is a compilation that ends right after the assignment. A program is described by
features of its default. Tuning of a new program begins with flags that have made earlier programs faster; each earlier program
counts with a weight, which is its similarity to the new one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from stowplan.document import Document

#: Values of the fields ``format`` and ``version`` of files with experience.
FORMAT = "stowplan.xla.experience"
VERSION = 1

#: The file that comes with this package; ``benchmarks/xla/tuning.py --learn`` writes it.
SHIPPED = Path(__file__).with_name("experience.json")

#: Width of the Gaussian kernel on the distance of features: an earlier program at this distance has the weight 0.61.
_WIDTH = 0.25
#: Factor of the weight of programs that were compiled for another target.
_OTHER_CHIP = 0.3
#: The tries of a flag, or of settings, on all earlier programs together count as at most this number of tries. Otherwise the
#: tries on the new program, of which there are few, would hardly count.
_MOST_TRIES = 6.0
#: Weight of the saving that a preview promises; the result of a flag on an identical program has the weight 1.
_PREVIEW = 0.25


class Improvement(NamedTuple):
    """The share of a program's cycles that a flag or a setting is expected to save."""

    saved: float
    """The expectation if losses count as 0, because the better of both compilations is kept; never negative."""
    mean: float
    """The expectation with losses; negative if a loss is expected."""


class EarlierProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A program that was tuned before."""

    family: str
    """Kind of network. A benchmark that measures what experience contributes leaves out all programs of the family of the
    program that it tunes."""
    target: str
    """Name of the target machine."""
    features: tuple[float, ...]
    """See :meth:`stowplan.backends.xla.evidence.Evidence.features`."""
    ways: dict[str, tuple[int, int]]
    """How often each flag was a win, and how often it was tried; ``knobs`` has these numbers for all settings together. A win
    is a compilation that was better than all earlier compilations of the program."""
    gains: dict[str, float] = {}
    """The share of the default's cycles that each flag saved by itself, and that the first setting (``knobs``) saved compared
    with the best compilation before it; negative for a loss."""


class Experience(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Results of programs that were tuned before."""

    programs: tuple[EarlierProgram, ...] = ()
    """The programs."""
    format: str = FORMAT
    version: int = VERSION

    def without(self, families: Collection[str]) -> Experience:
        """Returns these results without programs of some families."""
        return Experience(programs=tuple(program for program in self.programs if program.family not in families))

    def about(self, target: str, features: tuple[float, ...]) -> dict[str, tuple[float, float]]:
        """Returns (wins, tries) of each flag and of ``knobs``, weighted for a program with these features on this target.

        A *win* is a compilation that was better than all earlier ones. Flags that were never tried are missing.
        """
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

        It is the mean of the savings on earlier programs, weighted by similarity, and of the saving that a preview promises; 0
        if nothing is known.

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
        """Yields the earlier programs, each with its similarity to a program with these features."""
        for program in self.programs:
            distance = math.dist(program.features, features) / _WIDTH
            yield program, math.exp(-distance * distance / 2) * (1.0 if program.target == target else _OTHER_CHIP)


@cache
def shipped() -> Experience:
    """Returns the results that come with this package."""
    return Experience.load(SHIPPED)
