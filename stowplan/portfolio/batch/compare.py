"""Compares the results of two batches, input by input: ratios, their geometric mean, and paired statistics.

``stowplan compare`` uses it for two folders that ``stowplan batch`` wrote, for example with different options. A *batch* is the
solving of many inputs with the same settings, and a *record* is the file with the result of one input. The *name* of an input
is the path of its files below the output folder, without suffix.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from stowplan import kinds
from stowplan.errors import InputError
from stowplan.portfolio.batch.records import Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: How the second result of an input compares with the first; :attr:`Pair.outcome` explains the values.
Outcome = Literal[
    "win", "loss", "tie", "only_first", "only_second", "other_problem", "first_unsolved", "second_unsolved", "unsolved"
]


class Pair(msgspec.Struct, frozen=True):
    """The results for one input in two batches."""

    name: str
    """Name of the input."""
    outcome: Outcome
    """``win`` if the second objective is smaller, which is better, ``loss`` if it is larger, ``tie`` if both are equal.

    Inputs with any other outcome are not compared. ``only_first`` and ``only_second``: the input is in this batch alone.
    ``other_problem``: the two batches read it as different problems. ``first_unsolved`` and ``second_unsolved``: this batch has
    no plan. ``unsolved``: neither batch has a plan."""
    first: int | None
    """Objective in the first batch; None if there is no plan."""
    second: int | None
    """Objective in the second batch; None if there is no plan."""
    ratio: float | None
    """``first / second``, the speedup of the second batch over the first; 1 if both objectives are 0. It is None if the input
    is not compared, or if exactly one of the objectives is 0."""
    percent: float | None
    """``(second - first) / first`` in per cent; 0 if both objectives are 0. It is None if the input is not compared, if only
    the first objective is 0, or if an objective encodes two numbers in one integer."""
    unit: str
    """Name of the unit of the objectives; empty if neither batch has a result."""


class Comparison(msgspec.Struct, frozen=True):
    """The comparison of two batches."""

    pairs: tuple[Pair, ...]
    """All inputs of both batches, by ascending name."""
    wins: int
    """Number of inputs for which the second batch is better."""
    losses: int
    """Number of inputs for which the second batch is worse."""
    ties: int
    """Number of inputs for which both batches are equally good."""
    geometric_mean: float | None
    """Geometric mean of the ratios: above 1 if the second batch is better on the whole; None if no pair has a ratio."""
    statistics: PairedStatistics | None
    """Statistics of the differences; None if no pair is compared."""


def compare(first: Mapping[str, Record], second: Mapping[str, Record], *, seed: int = 0) -> Comparison:
    """Compare two batches by the names of their inputs.

    An input that is missing in one batch, that was read as another problem there, or that has no plan in one of them, is listed
    but not counted.

    Parameters
    ----------
    first, second
        Records of two batches, by the names of their inputs.
    seed
        Seed of the resampling for confidence intervals.

    Raises
    ------
    InputError
        No name is in both batches.
    KeyError
        The result in a record lacks a field that ``stowplan batch`` writes.
    """
    if not first.keys() & second.keys():
        one, other = (next(iter(sorted(names)), "nothing") for names in (first, second))
        raise InputError(f"found no input that both batches have ({one} ... and {other} ...), expected the same suite")
    pairs = tuple(_pair(name, first.get(name), second.get(name)) for name in sorted({*first, *second}))
    compared = [pair for pair in pairs if pair.outcome in ("win", "loss", "tie")]
    wins, losses, ties = (sum(pair.outcome == outcome for pair in compared) for outcome in ("win", "loss", "tie"))
    return Comparison(
        pairs=pairs,
        wins=wins,
        losses=losses,
        ties=ties,
        geometric_mean=geometric_mean(pair.ratio for pair in compared if pair.ratio is not None),
        statistics=paired_statistics([pair.percent for pair in compared], wins, losses, ties, seed=seed),
    )


def geometric_mean(values: Iterable[float]) -> float | None:
    """The geometric mean of positive values; None if there are none."""
    positive = list(values)
    return math.exp(math.fsum(map(math.log, positive)) / len(positive)) if positive else None


def speedups(record: Record) -> dict[str, float]:
    """The speedup of a result over each of its baselines, by the baseline's name: baseline objective / objective.

    It is empty if the record has no plan or the objective is 0; baselines whose objective is 0 are left out. Raises
    KeyError if the result lacks a field that ``stowplan batch`` writes.
    """
    result = record.result
    if result is None or not result["objective"]:
        return {}
    return {name: value / result["objective"] for name, value in result["baselines"].items() if value}


def _pair(name: str, first: Record | None, second: Record | None) -> Pair:
    """Compare the records of one input. A record is None if the batch does not have the input; at most one may be None."""
    a, b = (None if record is None or record.result is None else record.result for record in (first, second))
    either = a or b
    unit = str(either["unit"]) if either is not None else ""
    before = None if a is None else a["objective"]
    after = None if b is None else b["objective"]
    ratio: float | None = None
    percent: float | None = None
    outcome: Outcome
    if first is None:
        outcome = "only_second"
    elif second is None:
        outcome = "only_first"
    elif a is not None and b is not None and a["provenance"]["problem_digest"] != b["provenance"]["problem_digest"]:
        outcome = "other_problem"
    elif before is None or after is None:
        outcome = "unsolved" if before is after else "first_unsolved" if before is None else "second_unsolved"
    else:
        outcome = "tie" if before == after else "win" if after < before else "loss"
        ratio = before / after if before and after else 1.0 if before == after else None
        if kinds.unit(unit).has_ratios and (before or not after):
            percent = 100 * (after - before) / before if before else 0.0
    return Pair(name, outcome, before, after, ratio, percent, unit)


#: If fewer than this many pairs differ, no p-value can be below 0.05.
FEW = 6

#: Confidence level of the intervals, and number of bootstrap resamples. The number of resamples is a common choice; with one
#: more, each tail of 2.5 % would have a whole number of resamples.
CONFIDENCE, RESAMPLES = 0.95, 9_999


class Interval(msgspec.Struct, frozen=True):
    """A confidence interval, in the unit of the statistic."""

    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""


class PairedStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the relative differences (second - first) / first in per cent; if negative, the second batch is better."""

    pairs: int
    """Number of compared pairs."""
    mean_percent: float | None
    """Mean of the differences; None if no pair has one."""
    median_percent: float | None
    """Median of the differences; None if no pair has one."""
    mean_interval: Interval | None
    """Bootstrap confidence interval of the mean; None for fewer than two differences."""
    median_interval: Interval | None
    """Bootstrap confidence interval of the median; None for fewer than two differences."""
    wilcoxon_p: float | None
    """Two-sided p-value of Wilcoxon's signed-rank test on the differences that are not 0; None if there are none."""
    sign_p: float | None
    """Two-sided p-value of the sign test on the pairs that are no ties; None if all pairs are ties."""
    seed: int
    """Seed of the resampling."""
    notes: tuple[str, ...] = ()
    """Remarks on how to read the figures, as sentences without a full stop."""


def paired_statistics(
    percents: Sequence[float | None], wins: int, losses: int, ties: int, *, seed: int = 0
) -> PairedStatistics | None:
    """Statistics of paired results.

    Parameters
    ----------
    percents
        Relative difference of each pair in per cent; None if it is undefined (:attr:`Pair.percent`).
    wins, losses, ties
        Number of pairs whose second result is better, worse, and equally good.
    seed
        Seed of the resampling.

    Returns
    -------
    PairedStatistics or None
        None if there are no pairs.
    """
    pairs = wins + losses + ties
    if not pairs:
        return None
    import numpy as np

    differences = np.array([percent for percent in percents if percent is not None], np.float64)
    return PairedStatistics(
        pairs=pairs,
        mean_percent=float(np.mean(differences)) if len(differences) else None,
        median_percent=float(np.median(differences)) if len(differences) else None,
        mean_interval=_interval(differences, np.mean, seed),
        median_interval=_interval(differences, np.median, seed),
        wilcoxon_p=_wilcoxon(differences),
        sign_p=_sign_test(wins, losses),
        seed=seed,
        notes=_notes(pairs, len(differences), wins + losses),
    )


def _interval(values: NDArray[np.float64], statistic: object, seed: int) -> Interval | None:
    """The bootstrap confidence interval of a statistic such as :func:`numpy.mean`; None for fewer than two values."""
    import numpy as np
    from scipy.stats import bootstrap

    if len(values) < 2:
        return None
    rng = np.random.default_rng(seed)
    interval = bootstrap(
        (values,), statistic, n_resamples=RESAMPLES, confidence_level=CONFIDENCE, method="percentile", rng=rng, batch=500
    ).confidence_interval
    return Interval(float(interval.low), float(interval.high))


def _wilcoxon(values: NDArray[np.float64]) -> float | None:
    """Two-sided p-value of Wilcoxon's signed-rank test on the values that are not 0; None if there are none."""
    from scipy.stats import wilcoxon

    # Ties have no direction, and with them SciPy would not compute exact p-values of few pairs.
    different = values[values != 0]
    return float(wilcoxon(different).pvalue) if len(different) else None


def _sign_test(wins: int, losses: int) -> float | None:
    """Two-sided p-value of the sign test; None if there are neither wins nor losses."""
    from scipy.stats import binomtest

    return float(binomtest(wins, wins + losses).pvalue) if wins + losses else None


def _notes(pairs: int, with_ratio: int, different: int) -> tuple[str, ...]:
    """Remarks on statistics of few pairs that differ, or of pairs without a relative difference.

    ``pairs`` is the number of compared pairs. ``with_ratio`` is the number of those that have a relative difference, and
    ``different`` the number of those whose objectives differ.
    """
    notes = []
    if not different:
        notes.append("all pairs are ties: there is nothing to test")
    elif different < FEW:
        least = 2.0 ** (1 - different)
        which = "is a single pair that differs" if different == 1 else f"are {different} pairs that differ"
        notes.append(f"there {which}: p-values mean little, none can be below {least:.3g}")
    if with_ratio < pairs:
        notes.append(f"{pairs - with_ratio} of the pairs have no ratio: they count in the sign test alone")
    return tuple(notes)
