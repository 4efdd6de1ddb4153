"""What CP-SAT models of placements have in common: one memory for each item, loads of memories, and offsets.

A kind adds its objective, and rules of its own, on the variables of :class:`Places`.
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
    """The memory that each item is placed in, as variables of a model: exactly one of those that may hold it."""

    def __init__(self, model: cp_model.CpModel, placement: Placement):
        self.model, self.placement = model, placement
        self.inside: dict[tuple[int, int], Var] = {}
        """Whether an item is placed in a memory."""
        self.load: dict[int, Var] = {}
        """Units of the items that always live, in each memory whose loads were added."""
        self._units: dict[int, int] = {}
        self.steps: dict[tuple[int, int], Var] = {}
        """Offset that an item has in a memory if it is placed there, in its steps; for memories whose offsets were added."""
        for number, item in enumerate(placement.items):
            choices = []
            for memory in item.taken:
                choices.append(model.new_bool_var(f"item {number} in {memory}"))
                self.inside[number, memory] = choices[-1]
            model.add_exactly_one(choices)

    def add_loads(self, memory: int) -> None:
        """What lives at once in a memory takes no more bytes than there are, wherever it lies."""
        model, placement = self.model, self.placement
        room = placement.memories[memory].room
        always = placement.inside(memory, placement.always)
        unit = gcd(*(size for _, size in placement.inside(memory, range(len(placement.items))))) or 1

        def used(terms: list[tuple[int, int]]) -> Any:
            variables = [self.inside[number, memory] for number, _ in terms]
            return cp_model.LinearExpr.weighted_sum(variables, [size // unit for _, size in terms])

        if placement.always:
            self._units[memory] = unit
            self.load[memory] = model.new_int_var(0, max(0, room) // unit, f"always in {memory}")
            model.add(self.load[memory] == used(always))
        for live in placement.moments:
            terms = placement.inside(memory, live)
            if placement.always:
                model.add(self.load[memory] + used(terms) <= room // unit)
            elif sum(size for _, size in terms) > room:
                model.add(used(terms) <= room // unit)

    def bytes_of(self, memory: int) -> Any:
        """Bytes of the items in a memory that always live, once its loads were added."""
        return self._units[memory] * self.load[memory]

    def add_offsets(self, memory: int) -> None:
        """Items of a memory are rectangles, moments times bytes, that do not overlap."""
        model, placement = self.model, self.placement
        terms = placement.inside(memory, range(len(placement.items)))
        # All offsets are multiples of it: nothing is lost by sizes rounded up.
        unit = gcd(*(placement.steps[number, memory] for number, _ in terms)) or 1
        times, spaces = [], []
        for number, size in terms:
            item, here, step = placement.items[number], self.inside[number, memory], placement.steps[number, memory]
            low, high = placement.lowest.get((number, memory), 0) // step, (placement.memories[memory].end - size) // step
            at = self.steps[number, memory] = model.new_int_var(low, high, f"offset {number} in {memory}")
            if size:
                name = f"{number} in {memory}"
                length = item.end - item.first
                times.append(model.new_optional_fixed_size_interval_var(item.first, length, here, f"time {name}"))
                start = at if step == unit else step // unit * at
                spaces.append(model.new_optional_fixed_size_interval_var(start, -(-size // unit), here, f"space {name}"))
        model.add_no_overlap_2d(times, spaces)

    def hint(self, memory_of: Sequence[int], offsets: Sequence[int] | None) -> list[tuple[Var, int]]:
        """A value of each variable, from the memory and the offset of each item."""
        values = [(variable, int(memory_of[number] == memory)) for (number, memory), variable in self.inside.items()]
        for memory, variable in self.load.items():
            always = self.placement.inside(memory, self.placement.always)
            values.append(
                (variable, sum(size for number, size in always if memory_of[number] == memory) // self._units[memory])
            )
        for (number, memory), variable in self.steps.items():
            at = self.placement.lowest.get((number, memory), 0)
            if offsets is not None and memory_of[number] == memory:
                at = offsets[number]
            values.append((variable, at // self.placement.steps[number, memory]))
        return values

    def chosen(self, value: Value) -> list[int]:
        """Memory of each item in a solution."""
        memory_of = [0] * len(self.placement.items)
        for (number, memory), variable in self.inside.items():
            if value(variable):
                memory_of[number] = memory
        return memory_of

    def offsets(self, value: Value, memory_of: Sequence[int]) -> dict[int, int]:
        """Offset of each item in a solution, of memories whose offsets were added."""
        return {
            number: value(variable) * self.placement.steps[number, memory]
            for (number, memory), variable in self.steps.items()
            if memory_of[number] == memory
        }

    def total(self, costs: Mapping[tuple[int, int], int]) -> cp_model.LinearExprT:
        """Sum of the costs of items in the memories that they are placed in."""
        return cp_model.LinearExpr.weighted_sum([self.inside[place] for place in costs], [*costs.values()])

    def exclude(self, memory: int, numbers: Iterable[int]) -> None:
        """Forbid that all of these items are placed in a memory."""
        places = [self.inside[number, memory] for number in numbers]
        self.model.add(sum(places) <= len(places) - 1)
