"""What two batches, or one, come to: ratios program by program, and their geometric mean."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from stowplan.errors import InputError
from stowplan.portfolio.batch import Record
from stowplan.portfolio.paired import PairedStatistics, paired_statistics
from stowplan.result import two_numbers

Outcome = Literal[
    "win", "loss", "tie", "only_first", "only_second", "other_problem", "first_unsolved", "second_unsolved", "unsolved"
]


class Pair(msgspec.Struct, frozen=True):
    """One program in two batches."""

    name: str
    outcome: Outcome
    """Of the second: ``win`` where it is better. All but win, loss and tie are not compared; ``unsolved`` is neither's plan."""
    first: int | None
    """Objective in the first batch; smaller is better."""
    second: int | None
    ratio: float | None
    """first / second: the second's speedup over the first."""
    percent: float | None
    """(second - first) / first in per cent; None where that says nothing, as of units of two numbers."""
    unit: str


class Comparison(msgspec.Struct, frozen=True):
    """Two batches side by side."""

    pairs: tuple[Pair, ...]
    wins: int
    """Programs where the second is better."""
    losses: int
    ties: int
    geometric_mean: float | None
    """Of the ratios: above 1 where the second is better on the whole; None where nothing is comparable."""
    statistics: PairedStatistics | None
    """None where nothing is comparable."""


def compare(first: Mapping[str, Record], second: Mapping[str, Record], *, seed: int = 0) -> Comparison:
    """Compare by name; what is missing on one side, or was another problem there, is listed and not counted.

    Parameters
    ----------
    first, second
        Records of two batches, by name.
    seed
        Of the confidence intervals' resamples.

    Raises
    ------
    InputError
        No name is in both.
    """
    if not first.keys() & second.keys():
        one, other = (next(iter(sorted(each)), "nothing") for each in (first, second))
        raise InputError(f"found no input that both batches have ({one} ... and {other} ...), expected the same suite")
    pairs = tuple(_pair(name, first.get(name), second.get(name)) for name in sorted({*first, *second}))
    compared = [pair for pair in pairs if pair.outcome in ("win", "loss", "tie")]
    wins, losses, ties = (sum(pair.outcome == each for pair in compared) for each in ("win", "loss", "tie"))
    return Comparison(
        pairs=pairs,
        wins=wins,
        losses=losses,
        ties=ties,
        geometric_mean=geometric_mean(pair.ratio for pair in compared if pair.ratio is not None),
        statistics=paired_statistics([pair.percent for pair in compared], wins, losses, ties, seed=seed),
    )


def geometric_mean(values: Iterable[float]) -> float | None:
    """Geometric mean of positive values; None where there are none."""
    found = list(values)
    return math.exp(math.fsum(map(math.log, found)) / len(found)) if found else None


def speedups(record: Record) -> dict[str, float]:
    """Speedup of a result over each of its baselines that has one."""
    result = record.result
    if result is None or not result["objective"]:
        return {}
    return {name: value / result["objective"] for name, value in result["baselines"].items() if value}


def _pair(name: str, first: Record | None, second: Record | None) -> Pair:
    a, b = (None if record is None or record.result is None else record.result for record in (first, second))
    known = a or b
    unit = str(known["unit"]) if known is not None else ""
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
        if two_numbers(unit) is None and (before or not after):
            percent = 100 * (after - before) / before if before else 0.0
    return Pair(name, outcome, before, after, ratio, percent, unit)
