"""What is live and reserved fits in the limit: rows of the CP-SAT model."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import NamedTuple

from ortools.sat.python import cp_model

from stowplan.models.rematerialization.problem import Reservation
from stowplan.models.rematerialization.structure import Structure

Time = cp_model.LinearExprT


class Life(NamedTuple):
    """Bytes from one time to another."""

    start: Time
    end: cp_model.IntVar
    """Exclusive; not before the start where the bytes are there."""
    is_there: cp_model.IntVar | None
    """None where they always are, from time 0 on."""
    size: int


def marks(structure: Structure) -> set[int]:
    """Operators that reservations name."""
    named = (op for row in structure.reservations for op in (row.since, row.until, row.of))
    return {op for op in named if op is not None}


def add_fit(
    model: cp_model.CpModel,
    lives: list[Life],
    limit: int,
    structure: Structure,
    spans: Mapping[int, tuple[Time, Time]],
    horizon: int,
) -> None:
    """Add the rows.

    Parameters
    ----------
    limit
        Bytes.
    spans
        Of each operator that reservations name, when its run begins and ends.
    horizon
        No time is above this.
    """
    intervals = []
    for life in lives:
        if life.is_there is None:
            intervals.append(model.new_interval_var(0, life.end, life.end, ""))
            continue
        length = model.new_int_var(0, horizon, "")
        intervals.append(model.new_optional_interval_var(life.start, length, life.end, life.is_there, ""))
    sizes = [life.size for life in lives]
    unit = gcd(*sizes) if sizes else 1
    most, units = limit // unit, [size // unit for size in sizes]
    model.add_cumulative(intervals, units, most)
    rows = () if structure.problem.limit is None else structure.reservations
    live_at = {row.of: _live_at(model, lives, units, spans[row.of]) for row in rows if row.of is not None}
    for row in rows:
        # Rounded so that what is live beside it is within the limit in bytes where it is in units.
        taken = max(0, most - (limit - row.size) // unit) if not row.times else most - (limit - row.size) // unit
        demand: Time = taken
        if row.of is not None:
            largest = abs(taken) + row.times * sum(units)
            demand = model.new_int_var(0, largest, "")
            model.add(demand >= taken + row.times * live_at[row.of])
        model.add_cumulative([*intervals, _interval(model, row, spans, horizon)], [*units, demand], most)


def _interval(
    model: cp_model.CpModel, row: Reservation, spans: Mapping[int, tuple[Time, Time]], horizon: int
) -> cp_model.IntervalVar:
    """When a reservation is in force."""
    begin: Time = 0 if row.since is None else spans[row.since][0]
    end: Time = horizon if row.until is None else spans[row.until][0]
    if row.since is not None and row.since == row.until:
        end = spans[row.since][1]
    # It is never in force where it would end before it begins.
    is_there, length = model.new_bool_var(""), model.new_int_var(0, horizon, "")
    model.add(end > begin).only_enforce_if(is_there)
    model.add(end <= begin).only_enforce_if(~is_there)
    return model.new_optional_interval_var(begin, length, end, is_there, "")


def _live_at(model: cp_model.CpModel, lives: list[Life], units: list[int], span: tuple[Time, Time]) -> cp_model.LinearExprT:
    """Units that are live when a run begins, at least."""
    terms = []
    for life in lives:
        has_begun, is_left = model.new_bool_var(""), model.new_bool_var("")
        model.add(life.start > span[0]).only_enforce_if(~has_begun)
        model.add(life.end <= span[0]).only_enforce_if(~is_left)
        covers = model.new_bool_var("")
        both = [has_begun, is_left] if life.is_there is None else [has_begun, is_left, life.is_there]
        model.add_bool_or([covers, *(~each for each in both)])
        terms.append(covers)
    return cp_model.LinearExpr.weighted_sum(terms, units)
