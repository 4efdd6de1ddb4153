"""A CP-SAT model that reorders a *stretch*, some consecutive operators of an order, so that its peak is smallest.

Local search for operator order uses it. Variables are the positions of the operators. The live ranges of storages (tensors with
bytes of their own) are intervals between positions, and a cumulative constraint limits the bytes that are live. For a whole
graph of a few hundred operators, the model is too weak, so it is applied to stretches of an order. The graph is given as its
:class:`~stowplan.models.operator_order.structure.Structure`. Nothing here raises an error for valid arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Unpack

from ortools.sat.python import cp_model

from stowplan.models import cpsat_runner
from stowplan.models.cpsat_runner import Limits
from stowplan.models.operator_order.structure import Structure


class Stretch:
    """The model of one stretch.

    Parameters
    ----------
    before
        Operators that have run before the stretch.
    among
        Operators of the stretch, in a feasible order, which is the hint.
    upper
        Bytes that the peak within the stretch must not exceed, that is, the most bytes that are live while an operator of the
        stretch runs.

    Attributes
    ----------
    position
        Position of each operator within the stretch.
    unit, constant, capacity
        The peak within the stretch in bytes is ``constant + unit * capacity``. ``constant`` has the storages that are live
        throughout the stretch, and ``capacity`` is the variable that is minimized.
    """

    def __init__(self, structure: Structure, before: Sequence[int], among: Sequence[int], upper: int):
        self.among = list(among)
        done, inside = set(before), set(among)
        count = len(self.among)
        self.model = cp_model.CpModel()
        self.position = {op: self.model.new_int_var(0, count - 1, f"position {op}") for op in self.among}
        self.model.add_all_different(list(self.position.values()))
        for op in self.among:
            for other in structure.pred[structure.pred_start[op] : structure.pred_start[op + 1]].tolist():
                if other in inside:
                    self.model.add(self.position[other] < self.position[op])
        replaced = {
            (op, storage)
            for op in self.among
            for storage in structure.pair[structure.pair_start[op] : structure.pair_start[op + 1]].tolist()
        }
        lives, sizes, constant = [], [], 0
        for storage in range(structure.storages):
            size = int(structure.size[storage])
            users = structure.user[structure.user_start[storage] : structure.user_start[storage + 1]].tolist()
            inside_users = [op for op in users if op in inside]
            is_live_before = bool(structure.given[storage]) or any(op in done for op in users)
            is_live_after = bool(structure.kept[storage]) or any(op not in done and op not in inside for op in users)
            if not size or not structure.is_there[storage] or (not inside_users and not (is_live_before and is_live_after)):
                continue
            if is_live_before and is_live_after:
                constant += size
                continue
            start: cp_model.LinearExprT = 0 if is_live_before else self.position[int(structure.creator[storage])]
            end: cp_model.LinearExprT = count
            if not is_live_after:
                end = self.model.new_int_var(0, count, f"end {storage}")
                for op in inside_users:
                    # The live range of an operand whose bytes a result reuses ends where that of the result begins.
                    self.model.add(end >= self.position[op] + (0 if (op, storage) in replaced else 1))
            length = self.model.new_int_var(0, count, f"length {storage}")
            lives.append(self.model.new_interval_var(start, length, end, f"life {storage}"))
            sizes.append(size)
        self.unit = gcd(*sizes) if sizes else 1
        self.constant = constant
        most = max(0, (upper - constant) // self.unit)
        self.capacity = self.model.new_int_var(0, most, "capacity")
        if upper < constant:
            self.model.add_bool_or([])
        self.model.add_cumulative(lives, [size // self.unit for size in sizes], self.capacity)
        self.model.minimize(self.capacity)
        for at, op in enumerate(self.among):
            self.model.add_hint(self.position[op], at)


def order_stretch(
    structure: Structure, before: Sequence[int], among: Sequence[int], upper: int, **limits: Unpack[Limits]
) -> tuple[list[int] | None, int | None]:
    """Find the order of a stretch that has the smallest peak.

    Parameters
    ----------
    structure, before, among, upper
        Passed on to :class:`Stretch`. Operators that are in neither list run after the stretch.
    limits
        Keyword arguments of :func:`stowplan.models.cpsat_runner.run`.

    Returns
    -------
    (list of int or None, int or None)
        First, the operators of the stretch in the best order found; None if no order within ``upper`` was found. Second, a
        lower bound in bytes on the peak within the stretch: ``upper + 1`` if it is proven that no order is within ``upper``,
        and None if nothing is proven. An empty stretch gives an empty list and None.
    """
    if not among:
        return [], None
    stretch = Stretch(structure, before, among, upper)
    result = cpsat_runner.run(stretch.model, **limits)
    if result.status == "infeasible":
        return None, upper + 1
    order = sorted(stretch.among, key=lambda op: result.value(stretch.position[op])) if result.is_found else None
    return order, None if result.bound is None else stretch.constant + result.bound * stretch.unit
