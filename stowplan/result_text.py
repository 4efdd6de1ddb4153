"""Text for the figures of results: gaps, percentages and ratios."""

from __future__ import annotations


def format_gap(gap: float) -> str:
    """A gap as a percentage. A small positive gap becomes ``< 0.01%``, so that only a closed gap is printed as 0."""
    return "< 0.01%" if 0 < gap < 0.0001 else f"{gap:.2%}"


def format_percent(percent: float) -> str:
    """A percentage with two decimals, or with as many more as are needed to tell it from 0."""
    texts = (f"{percent:.{digits}f}" for digits in range(2, 9))
    return next((f"{text} %" for text in texts if percent == 0 or float(text) != 0), f"{percent:.1e} %")


def format_ratio(ratio: float) -> str:
    """A ratio with three decimals, or with as many more as are needed to tell it from 1."""
    return next(
        (text for text in (f"{ratio:.{digits}f}" for digits in range(3, 10)) if ratio == 1 or float(text) != 1), "1.000"
    )
