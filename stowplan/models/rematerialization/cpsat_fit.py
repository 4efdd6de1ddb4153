"""The memory constraints of the CP-SAT model: live and reserved bytes stay within the limit at every time.

A *reservation* is a number of bytes of the limit that something outside the graph occupies during a part of the plan
(:class:`~stowplan.models.rematerialization.problem.Reservation`). Its bytes may include a multiple of the bytes that are live
at some operator. Times are those of :mod:`~stowplan.models.rematerialization.cpsat_model`. Nothing here raises an error for
valid arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import NamedTuple

from ortools.sat.python import cp_model

from stowplan.models.rematerialization.problem import Reservation
from stowplan.models.rematerialization.structure import Structure

Time = cp_model.LinearExprT


class Life(NamedTuple):
    """Bytes that are live during ``[start, end)``, if they are live at all."""

    start: Time
    """Time from which the bytes are live."""
    end: cp_model.IntVar
    """Time up to which the bytes are live, at least ``start``; without meaning if they are not live at all."""
    is_there: cp_model.IntVar | None
    """Boolean variable that says whether the bytes are live at all; None if they are always live from time 0 on."""
    size: int
    """Number of bytes."""


def reserving_operators(structure: Structure) -> set[int]:
    """Operators that reservations refer to."""
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
    """Add cumulative constraints for the live bytes, alone and together with each reservation.

    Reservations are ignored if the problem has no limit.

    Parameters
    ----------
    lives
        The bytes that can be live.
    limit
        Limit in bytes.
    spans
        Start and end of the run of each operator in :func:`reserving_operators`, by its number.
    horizon
        Upper limit of all times.
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
        # The reservation is rounded such that live bytes and reservation fit into the limit exactly if they fit in units.
        reserved = max(0, most - (limit - row.size) // unit) if not row.times else most - (limit - row.size) // unit
        demand: Time = reserved
        if row.of is not None:
            largest = abs(reserved) + row.times * sum(units)
            demand = model.new_int_var(0, largest, "")
            model.add(demand >= reserved + row.times * live_at[row.of])
        model.add_cumulative([*intervals, _interval(model, row, spans, horizon)], [*units, demand], most)


def _interval(
    model: cp_model.CpModel, row: Reservation, spans: Mapping[int, tuple[Time, Time]], horizon: int
) -> cp_model.IntervalVar:
    """The interval during which a reservation is in force; it is absent if the reservation would end before it begins."""
    begin: Time = 0 if row.since is None else spans[row.since][0]
    end: Time = horizon if row.until is None else spans[row.until][0]
    if row.since is not None and row.since == row.until:
        end = spans[row.since][1]
    # The reservation is never in force if it would end before it begins.
    is_there, length = model.new_bool_var(""), model.new_int_var(0, horizon, "")
    model.add(end > begin).only_enforce_if(is_there)
    model.add(end <= begin).only_enforce_if(~is_there)
    return model.new_optional_interval_var(begin, length, end, is_there, "")


def _live_at(model: cp_model.CpModel, lives: list[Life], units: list[int], span: tuple[Time, Time]) -> cp_model.LinearExprT:
    """The units that are live when a run begins, as a linear expression. Its value may be larger, but not smaller."""
    terms = []
    for life in lives:
        has_begun, has_not_ended = model.new_bool_var(""), model.new_bool_var("")
        model.add(life.start > span[0]).only_enforce_if(~has_begun)
        model.add(life.end <= span[0]).only_enforce_if(~has_not_ended)
        covers = model.new_bool_var("")
        conditions = [has_begun, has_not_ended] if life.is_there is None else [has_begun, has_not_ended, life.is_there]
        model.add_bool_or([covers, *(~each for each in conditions)])
        terms.append(covers)
    return cp_model.LinearExpr.weighted_sum(terms, units)
