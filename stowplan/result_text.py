"""Figures of results in words: gaps, per cent and ratios, and why a run ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def stopped(reason: str, seconds: float, seconds_before: float, options: Mapping[str, Any], *, deterministic: bool) -> str:
    """Why and when a run ended, for people: ``stopped at the time limit of 5.0 s (3.2 s of it reading and start-up)``.

    Parameters
    ----------
    reason, seconds, seconds_before, deterministic
        As a :class:`~stowplan.kernel.result.Result` and its provenance have them.
    options
        The provenance's own, of which ``time_limit`` is said where that has ended the run.
    """
    limit = options.get("time_limit")
    if reason != "time_limit" or limit is None:
        return f"stopped by {reason} after {seconds:.1f} s"
    # A deterministic run is limited by work, and ended from outside at twice its time limit.
    told = f"stopped at {'twice ' if deterministic else ''}the time limit of {format_seconds(limit)}"
    if seconds_before < 0.05:
        return told
    part = "of it reading and start-up" if seconds_before < limit else "for reading and start-up alone"
    return f"{told} ({format_seconds(seconds_before)} {part})"


def format_seconds(seconds: float) -> str:
    """Seconds with one decimal, or as many more as tell them from 0."""
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds:.2g} s"


def format_gap(gap: float) -> str:
    """A gap in per cent; only one that is closed is called 0."""
    return "< 0.01%" if 0 < gap < 0.0001 else f"{gap:.2%}"


def format_percent(percent: float) -> str:
    """Per cent with two decimals, or as many more as tell it from 0."""
    texts = (f"{percent:.{digits}f}" for digits in range(2, 9))
    return next((f"{text} %" for text in texts if percent == 0 or float(text) != 0), f"{percent:.1e} %")


def format_ratio(ratio: float) -> str:
    """A ratio with three decimals, or as many more as tell it from 1."""
    return next(
        (text for text in (f"{ratio:.{digits}f}" for digits in range(3, 10)) if ratio == 1 or float(text) != 1), "1.000"
    )
