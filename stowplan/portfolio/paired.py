"""Statistics of pairs: is one batch better than another on the same inputs, or is it chance?"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

#: Fewer pairs than this give no p-value below 0.05, whatever they are.
FEW = 6

#: Confidence of the intervals, and resamples that they come from.
CONFIDENCE, RESAMPLES = 0.95, 9_999


class Interval(msgspec.Struct, frozen=True):
    """A confidence interval, in the unit of what it is of."""

    low: float
    high: float


class PairedStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Of relative differences, (second - first) / first, in per cent: below 0 where the second is better."""

    pairs: int
    mean_percent: float | None
    median_percent: float | None
    mean_interval: Interval | None
    """By bootstrap; None of a single pair."""
    median_interval: Interval | None
    wilcoxon_p: float | None
    """Two-sided p-value of the signed-rank test, ties left out; None where all are ties."""
    sign_p: float | None
    """Two-sided p-value of the sign test, ties left out."""
    seed: int
    notes: tuple[str, ...] = ()
    """What the figures do not say by themselves."""


def paired_statistics(
    percents: Sequence[float | None], wins: int, losses: int, ties: int, *, seed: int = 0
) -> PairedStatistics | None:
    """Statistics of pairs.

    Parameters
    ----------
    percents
        Relative difference of each pair in per cent; None where there is none: of a first that costs nothing, or of units of
        two numbers.
    wins, losses, ties
        Pairs whose second is better, worse, and as good.
    seed
        Of the resamples.

    Returns
    -------
    PairedStatistics or None
        None of no pairs.
    """
    pairs = wins + losses + ties
    if not pairs:
        return None
    import numpy as np

    found = np.array([each for each in percents if each is not None])
    return PairedStatistics(
        pairs=pairs,
        mean_percent=float(np.mean(found)) if len(found) else None,
        median_percent=float(np.median(found)) if len(found) else None,
        mean_interval=_interval(found, np.mean, seed),
        median_interval=_interval(found, np.median, seed),
        wilcoxon_p=_wilcoxon(found),
        sign_p=_sign_test(wins, losses),
        seed=seed,
        notes=_notes(pairs, len(found), wins + losses),
    )


def _interval(values: object, statistic: object, seed: int) -> Interval | None:
    """Percentiles of the statistic over resamples of the pairs."""
    import numpy as np
    from scipy.stats import bootstrap

    each = np.asarray(values)
    if len(each) < 2:
        return None
    rng = np.random.default_rng(seed)
    found = bootstrap(
        (each,), statistic, n_resamples=RESAMPLES, confidence_level=CONFIDENCE, method="percentile", rng=rng, batch=500
    ).confidence_interval
    return Interval(float(found.low), float(found.high))


def _wilcoxon(values: object) -> float | None:
    import numpy as np
    from scipy.stats import wilcoxon

    each = np.asarray(values)
    # Ties say nothing of the direction; without them the p-values of few pairs are exact.
    each = each[each != 0]
    return float(wilcoxon(each).pvalue) if len(each) else None


def _sign_test(wins: int, losses: int) -> float | None:
    from scipy.stats import binomtest

    return float(binomtest(wins, wins + losses).pvalue) if wins + losses else None


def _notes(pairs: int, with_ratio: int, unlike: int) -> tuple[str, ...]:
    notes = []
    if not unlike:
        notes.append("all pairs are ties: there is nothing to test")
    elif unlike < FEW:
        least = 2.0 ** (1 - unlike)
        which = "is a single pair that differs" if unlike == 1 else f"are {unlike} pairs that differ"
        notes.append(f"there {which}: p-values mean little, none can be below {least:.3g}")
    if with_ratio < pairs:
        notes.append(f"{pairs - with_ratio} of the pairs have no ratio: they count in the sign test alone")
    return tuple(notes)
