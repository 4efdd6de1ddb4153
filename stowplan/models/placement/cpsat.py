"""The part that the CP-SAT models of banked packing, tier placement and LLM placement have in common.

:class:`Places` builds the variables and constraints that assign each item to one memory, limit the bytes that are live in a
memory at once and, on request, give each item an offset. An item is a buffer, the weights or the output of a layer, or a whole
layer; a *permanent* item is live at every moment. The model of each kind adds its objective and further rules. Functions raise
no errors except those that they document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import gcd
from typing import Any

from ortools.sat.python import cp_model

from stowplan.models.cpsat_runner import Value
from stowplan.models.placement.items import Placement

Var = cp_model.IntVar


class Places:
    """Assigns each item to exactly one of the memories that may hold it, as variables and constraints of a CP-SAT model.

    Parameters
    ----------
    model
        The model that variables and constraints are added to.
    placement
        Items and memories.
    """

    def __init__(self, model: cp_model.CpModel, placement: Placement):
        self.model, self.placement = model, placement
        self.inside: dict[tuple[int, int], Var] = {}
        """Boolean variable for each item and each memory that may hold it: whether the item is placed there."""
        self.permanent_load: dict[int, Var] = {}
        """Total size of the permanent items in each memory, in units of ``_load_unit`` bytes. Only memories that were passed to
        :meth:`add_loads` have this variable, and only if there are permanent items."""
        self._load_unit: dict[int, int] = {}
        self.steps: dict[tuple[int, int], Var] = {}
        """Offset of an item in a memory, divided by its alignment there, by (item, memory). Only memories that were passed to
        :meth:`add_offsets` have this variable."""
        for number, item in enumerate(placement.items):
            choices = []
            for memory in item.size_in:
                choices.append(model.new_bool_var(f"item {number} in {memory}"))
                self.inside[number, memory] = choices[-1]
            model.add_exactly_one(choices)

    def add_loads(self, memory: int) -> None:
        """Add the constraint that items that are live at the same time in a memory have no more bytes than its capacity."""
        model, placement = self.model, self.placement
        capacity = placement.memories[memory].capacity
        permanent = placement.inside(memory, placement.permanent)
        unit = gcd(*(size for _, size in placement.inside(memory, range(len(placement.items))))) or 1

        def load_of(terms: list[tuple[int, int]]) -> Any:
            """The load in units of the given items (item, bytes) that are placed in the memory, as an expression."""
            variables = [self.inside[number, memory] for number, _ in terms]
            return cp_model.LinearExpr.weighted_sum(variables, [size // unit for _, size in terms])

        if placement.permanent:
            self._load_unit[memory] = unit
            self.permanent_load[memory] = model.new_int_var(0, max(0, capacity) // unit, f"always in {memory}")
            model.add(self.permanent_load[memory] == load_of(permanent))
        for live in placement.maximal_live_sets:
            terms = placement.inside(memory, live)
            if placement.permanent:
                model.add(self.permanent_load[memory] + load_of(terms) <= capacity // unit)
            elif sum(size for _, size in terms) > capacity:
                model.add(load_of(terms) <= capacity // unit)

    def bytes_of(self, memory: int) -> Any:
        """Bytes of the permanent items in a memory, as an expression. Raises KeyError if there are no permanent items, or if
        :meth:`add_loads` was not called for the memory before."""
        return self._load_unit[memory] * self.permanent_load[memory]

    def add_offsets(self, memory: int) -> None:
        """Add offsets for a memory. Each item is a rectangle of time and bytes, and no two rectangles overlap."""
        model, placement = self.model, self.placement
        terms = placement.inside(memory, range(len(placement.items)))
        # All offsets are multiples of this unit. Rounding sizes up to it therefore excludes no placement.
        unit = gcd(*(placement.steps[number, memory] for number, _ in terms)) or 1
        times, spaces = [], []
        for number, size in terms:
            item, is_here, alignment = placement.items[number], self.inside[number, memory], placement.steps[number, memory]
            low, high = (
                placement.lowest.get((number, memory), 0) // alignment,
                (placement.memories[memory].end - size) // alignment,
            )
            multiple = self.steps[number, memory] = model.new_int_var(low, high, f"offset {number} in {memory}")
            if size:
                name = f"{number} in {memory}"
                length = item.end - item.first
                times.append(model.new_optional_fixed_size_interval_var(item.first, length, is_here, f"time {name}"))
                start = multiple if alignment == unit else alignment // unit * multiple
                spaces.append(model.new_optional_fixed_size_interval_var(start, -(-size // unit), is_here, f"space {name}"))
        model.add_no_overlap_2d(times, spaces)

    def hint_values(self, memory_of: Sequence[int], offsets: Sequence[int] | None) -> list[tuple[Var, int]]:
        """A value for every variable of this object.

        Parameters
        ----------
        memory_of
            Number of the memory of each item.
        offsets
            Offset of each item in bytes; None gives every item its lowest offset.
        """
        values = [(variable, int(memory_of[number] == memory)) for (number, memory), variable in self.inside.items()]
        for memory, variable in self.permanent_load.items():
            permanent = self.placement.inside(memory, self.placement.permanent)
            values.append(
                (variable, sum(size for number, size in permanent if memory_of[number] == memory) // self._load_unit[memory])
            )
        for (number, memory), variable in self.steps.items():
            at = self.placement.lowest.get((number, memory), 0)
            if offsets is not None and memory_of[number] == memory:
                at = offsets[number]
            values.append((variable, at // self.placement.steps[number, memory]))
        return values

    def chosen_memories(self, value: Value) -> list[int]:
        """Number of the memory of each item in a solution."""
        memory_of = [0] * len(self.placement.items)
        for (number, memory), variable in self.inside.items():
            if value(variable):
                memory_of[number] = memory
        return memory_of

    def offsets(self, value: Value, memory_of: Sequence[int]) -> dict[int, int]:
        """Offset in bytes of each item in a solution, by item, if its memory was passed to :meth:`add_offsets`."""
        return {
            number: value(variable) * self.placement.steps[number, memory]
            for (number, memory), variable in self.steps.items()
            if memory_of[number] == memory
        }

    def total(self, costs: Mapping[tuple[int, int], int]) -> cp_model.LinearExprT:
        """Total cost as a linear expression: ``costs[item, memory]`` counts if the item is placed in that memory. Raises
        KeyError if it may not be placed there."""
        return cp_model.LinearExpr.weighted_sum([self.inside[place] for place in costs], [*costs.values()])

    def exclude(self, memory: int, numbers: Iterable[int]) -> None:
        """Forbid that all of these items are placed in this memory together. Raises KeyError if an item may not be placed
        there at all."""
        places = [self.inside[number, memory] for number in numbers]
        self.model.add(sum(places) <= len(places) - 1)
