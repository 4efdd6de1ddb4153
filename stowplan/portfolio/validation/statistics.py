"""Statistics of a validation: distributions of gaps, and correlations that are None if they are undefined.

A *gap* is ``(objective - reference) / objective``, where the reference is the optimum or a lower bound. A *game* is the making
of one plan by a learned policy. Some units encode two numbers in one integer; the first number decides between plans. The
functions raise no errors, provided that lists are as long as stated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from stowplan.units import Unit

Floats = npt.NDArray[np.float64]

#: If the range of a list of values is at most this fraction of their largest magnitude, the values differ only by rounding
#: errors and count as equal.
_ROUNDING = 1e-12


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of the gaps of games, as fractions (0.01 is 1 %).

    ``optimal``, ``within_1`` and ``within_5`` are shares of all ``count`` games. The other figures refer to the games with a
    valid plan, and are None if there is none.
    """

    count: int
    """Number of games."""
    lost: int
    """Number of games without a valid plan. They count as not optimal and as not within any gap."""
    mean: float | None = None
    """Mean of the gaps."""
    lower_quartile: float | None = None
    """A quarter of the gaps are at most this."""
    median: float | None = None
    """Half of the gaps are at most this."""
    upper_quartile: float | None = None
    """Three quarters of the gaps are at most this."""
    worst: float | None = None
    """The largest gap."""
    optimal: float | None = None
    """Share of games whose plan is proven optimal. If objectives encode two numbers, both are optimal; ``within_1`` and
    ``within_5`` refer to the first number alone."""
    within_1: float | None = None
    """Share of games with a gap of at most 1 %."""
    within_5: float | None = None
    """Share of games with a gap of at most 5 %."""


def spread(gaps: Iterable[float | None], optimal: int) -> Spread:
    """The distribution of gaps, in which None stands for a game without a valid plan.

    ``optimal`` is the number of games with an optimal plan. Without gaps, ``count`` and ``lost`` are 0 and all else is None.
    """
    every = list(gaps)
    found = np.array([gap for gap in every if gap is not None])
    count = len(every)
    if not count:
        return Spread(count=0, lost=0)
    shares = {
        "optimal": optimal / count,
        "within_1": float((found <= 0.01).sum()) / count,
        "within_5": float((found <= 0.05).sum()) / count,
    }
    if not len(found):
        return Spread(count=count, lost=count, **shares)
    low, middle, high = (float(quantile) for quantile in np.quantile(found, (0.25, 0.5, 0.75)))
    return Spread(
        count=count,
        lost=count - len(found),
        mean=float(found.mean()),
        lower_quartile=low,
        median=middle,
        upper_quartile=high,
        worst=float(found.max()),
        **shares,
    )


def gap_to(objective: int, reference: int, unit: Unit) -> float:
    """``(objective - reference) / objective``, at least 0, and 0 if the objective is 0.

    For units that encode two numbers, it is the gap of the first number.
    """
    return _gap(unit.split(objective)[0], unit.split(reference)[0])


def second_gap_to(objective: int, reference: int, unit: Unit) -> float | None:
    """The gap of the second number of an objective; None if the first numbers differ, or for units of a single number."""
    (first, second), (reference_first, reference_second) = unit.split(objective), unit.split(reference)
    return None if unit.has_ratios or first != reference_first else _gap(second, reference_second)


def _gap(objective: int, reference: int) -> float:
    """``(objective - reference) / objective``, at least 0, and 0 if the objective is 0."""
    return max(0.0, (objective - reference) / objective) if objective else 0.0


def pearson(first: Sequence[float] | Floats, second: Sequence[float] | Floats) -> float | None:
    """Pearson's correlation of two lists; None for fewer than two values, or if either list is constant.

    The lists must be equally long.
    """
    one, two = (np.asarray(sample, np.float64) for sample in (first, second))
    if len(one) < 2:
        return None
    return _cosine(_centre(one), _centre(two))


def spearman(first: Sequence[float] | Floats, second: Sequence[float] | Floats) -> float | None:
    """Spearman's rank correlation, in which equal values share the mean of their ranks.

    It is None under the same conditions as :func:`pearson`. The lists must be equally long.
    """
    return pearson(_ranks(first), _ranks(second))


def spearman_within(groups: Iterable[tuple[Sequence[float] | Floats, Sequence[float] | Floats]]) -> float | None:
    """The rank correlation of pairs of lists, pooled over groups.

    Ranks are computed within each group, divided by its size and centred, so that differences between groups do not count.
    Groups with fewer than two pairs, and groups in which either list is constant, are left out. The result is None if no group
    remains. The two lists of a group must be equally long.
    """
    ones, twos = [], []
    for first, second in groups:
        if len(first) < 2:
            continue
        one, two = (_centre(_ranks(sample)) / len(first) for sample in (first, second))
        if one.any() and two.any():
            ones.append(one)
            twos.append(two)
    return _cosine(np.concatenate(ones), np.concatenate(twos)) if ones else None


def _ranks(values: Sequence[float] | Floats) -> Floats:
    """The ranks of values; equal values share the mean of their ranks."""
    array = np.asarray(values, np.float64)
    # Values that differ only by rounding errors must have equal ranks.
    return np.asarray(rankdata(np.zeros(len(array)) if _is_constant(array) else array), np.float64)


def _centre(values: Floats) -> Floats:
    """The values minus their mean; all 0 if they are constant."""
    centred: Floats = values - values.mean()
    return np.zeros_like(centred) if _is_constant(values) else centred


def _is_constant(values: Floats) -> bool:
    """Whether all values are equal up to rounding errors."""
    return not len(values) or bool(np.ptp(values) <= _ROUNDING * float(np.abs(values).max()))


def _cosine(one: Floats, two: Floats) -> float | None:
    """The cosine of the angle between two vectors; None if one of the vectors is 0."""
    length = float(np.linalg.norm(one) * np.linalg.norm(two))
    return float(np.clip(one @ two / length, -1.0, 1.0)) if length > 0 else None
