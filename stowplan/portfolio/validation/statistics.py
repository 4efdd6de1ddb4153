"""Distributions of gaps, and correlations that say None where there is nothing to correlate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from stowplan.units import Unit

Floats = npt.NDArray[np.float64]

#: Spread of values below this part of their size is rounding: such values are equal.
_ROUNDING = 1e-12


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How gaps are distributed. Shares are of all ``count`` plans asked for; the moments are of those that came to a plan."""

    count: int
    lost: int
    """Games that came to no valid plan; they are within no share."""
    mean: float | None = None
    lower_quartile: float | None = None
    median: float | None = None
    upper_quartile: float | None = None
    worst: float | None = None
    optimal: float | None = None
    """Share at a proven optimum, of objectives of two numbers with both: the gap of the first alone may be 0 in more plans."""
    within_1: float | None = None
    """Share with a gap of at most 1 %."""
    within_5: float | None = None


def spread(gaps: Iterable[float | None], optimal: int) -> Spread:
    """The distribution of gaps; None is a game without a plan, ``optimal`` how many reached a proven optimum."""
    every = list(gaps)
    known = np.array([gap for gap in every if gap is not None])
    count = len(every)
    if not count:
        return Spread(count=0, lost=0)
    shares = {
        "optimal": optimal / count,
        "within_1": float((known <= 0.01).sum()) / count,
        "within_5": float((known <= 0.05).sum()) / count,
    }
    if not len(known):
        return Spread(count=count, lost=count, **shares)
    low, middle, high = (float(quantile) for quantile in np.quantile(known, (0.25, 0.5, 0.75)))
    return Spread(
        count=count,
        lost=count - len(known),
        mean=float(known.mean()),
        lower_quartile=low,
        median=middle,
        upper_quartile=high,
        worst=float(known.max()),
        **shares,
    )


def gap_to(objective: int, reference: int, unit: Unit) -> float:
    """(objective - reference) / objective; of units of two numbers the first alone, for it decides."""
    return _gap(unit.split(objective)[0], unit.split(reference)[0])


def second_gap_to(objective: int, reference: int, unit: Unit) -> float | None:
    """The gap of the second number where the first is equal; None for plain units, and where it is not."""
    (first, second), (known, other) = unit.split(objective), unit.split(reference)
    return None if unit.has_ratios or first != known else _gap(second, other)


def _gap(objective: int, reference: int) -> float:
    return max(0.0, (objective - reference) / objective) if objective else 0.0


def pearson(first: Sequence[float] | Floats, second: Sequence[float] | Floats) -> float | None:
    """Correlation of two lists of equal length; None with fewer than two values, and where either is constant."""
    one, two = (np.asarray(sample, np.float64) for sample in (first, second))
    if len(one) < 2:
        return None
    return _cosine(_centred(one), _centred(two))


def spearman(first: Sequence[float] | Floats, second: Sequence[float] | Floats) -> float | None:
    """Rank correlation, equal values sharing the mean of their ranks; None as of :func:`pearson`."""
    return pearson(_ranks(first), _ranks(second))


def spearman_within(groups: Iterable[tuple[Sequence[float] | Floats, Sequence[float] | Floats]]) -> float | None:
    """Rank correlation of pairs of lists pooled within their groups.

    Ranks are of each group by itself, as parts of it and less their mean, so that nothing between groups counts. Groups in
    which either list is constant say nothing and are left out. None where that is all of them.
    """
    ones, twos = [], []
    for first, second in groups:
        if len(first) < 2:
            continue
        one, two = (_centred(_ranks(sample)) / len(first) for sample in (first, second))
        if one.any() and two.any():
            ones.append(one)
            twos.append(two)
    return _cosine(np.concatenate(ones), np.concatenate(twos)) if ones else None


def _ranks(values: Sequence[float] | Floats) -> Floats:
    array = np.asarray(values, np.float64)
    # What differs by rounding alone is equal.
    return np.asarray(rankdata(np.zeros(len(array)) if _is_constant(array) else array), np.float64)


def _centred(values: Floats) -> Floats:
    centred: Floats = values - values.mean()
    return np.zeros_like(centred) if _is_constant(values) else centred


def _is_constant(values: Floats) -> bool:
    return not len(values) or bool(np.ptp(values) <= _ROUNDING * float(np.abs(values).max()))


def _cosine(one: Floats, two: Floats) -> float | None:
    length = float(np.linalg.norm(one) * np.linalg.norm(two))
    return float(np.clip(one @ two / length, -1.0, 1.0)) if length > 0 else None
