"""The order of a stretch of operators as a CP-SAT model: positions, lives between them, and the least capacity that holds them.

Over a whole graph of some hundred operators it is weak, so that it is used for stretches of an order.
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
    """Variables of the model.

    Parameters
    ----------
    before
        Operators that have run.
    among
        Those that are to be ordered, in an order in which they can run.
    upper
        Bytes that the peak does not exceed.
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
            here = [op for op in users if op in inside]
            begun = bool(structure.given[storage]) or any(op in done for op in users)
            stays = bool(structure.kept[storage]) or any(op not in done and op not in inside for op in users)
            if not size or not structure.is_there[storage] or (not here and not (begun and stays)):
                continue
            if begun and stays:
                constant += size
                continue
            start: cp_model.LinearExprT = 0 if begun else self.position[int(structure.creator[storage])]
            end: cp_model.LinearExprT = count
            if not stays:
                end = self.model.new_int_var(0, count, f"end {storage}")
                for op in here:
                    # The operand of a pair ends where its successor begins, where no other needs it.
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
    """The best order of a stretch.

    Parameters
    ----------
    structure, before, among, upper
        As :class:`Stretch` takes them; operators that are in neither list run afterwards.
    limits
        As :func:`stowplan.models.cpsat_runner.run` takes them.

    Returns
    -------
    (list of int or None, int or None)
        The operators of the stretch in their best order, None where none within ``upper`` was found; and a bound in bytes on
        the peak within the stretch, ``upper + 1`` where it is proven that there is none.
    """
    if not among:
        return [], None
    stretch = Stretch(structure, before, among, upper)
    done = cpsat_runner.run(stretch.model, **limits)
    if done.status == "infeasible":
        return None, upper + 1
    order = sorted(stretch.among, key=lambda op: done.value(stretch.position[op])) if done.is_found else None
    return order, None if done.bound is None else stretch.constant + done.bound * stretch.unit
