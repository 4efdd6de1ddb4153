"""What two batches, or one, come to: ratios program by program, and their geometric mean."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from stowplan.portfolio.batch import Record

Outcome = Literal["win", "loss", "tie", "only_first", "only_second", "other_problem", "no_objective"]


class Pair(msgspec.Struct, frozen=True):
    """One program in two batches."""

    name: str
    outcome: Outcome
    """Of the second: ``win`` where it is better. The last four are not compared."""
    first: int | None
    """Objective in the first batch; smaller is better."""
    second: int | None
    ratio: float | None
    """first / second: the second's speedup over the first."""
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


def compare(first: Mapping[str, Record], second: Mapping[str, Record]) -> Comparison:
    """Compare by name; what is missing on one side, or was another problem there, is listed and not counted."""
    pairs = tuple(_pair(name, first.get(name), second.get(name)) for name in sorted({*first, *second}))
    return Comparison(
        pairs=pairs,
        wins=sum(pair.outcome == "win" for pair in pairs),
        losses=sum(pair.outcome == "loss" for pair in pairs),
        ties=sum(pair.outcome == "tie" for pair in pairs),
        geometric_mean=geometric_mean(pair.ratio for pair in pairs if pair.ratio is not None),
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
    outcome: Outcome
    if first is None:
        outcome = "only_second"
    elif second is None:
        outcome = "only_first"
    elif before is None or after is None or a is None or b is None:
        outcome = "no_objective"
    elif a["provenance"]["problem_digest"] != b["provenance"]["problem_digest"]:
        outcome = "other_problem"
    else:
        outcome = "tie" if before == after else "win" if after < before else "loss"
        ratio = before / after if before and after else 1.0 if before == after else None
    return Pair(name, outcome, before, after, ratio, unit)
