"""What placements share finds the cheapest memories and offsets, as trying all of them does."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from ortools.sat.python import cp_model

from stowplan.models.placement.cpsat import Places
from stowplan.models.placement.items import Item, Memory, Placement


def by_lot(seed: int) -> tuple[Placement, dict[tuple[int, int], int]]:
    """Up to four items, two memories with alignments and something reserved, and costs."""
    chance = random.Random(seed)
    items, steps, lowest, costs = [], {}, {}, {}
    align, ends = [chance.choice([1, 2, 3]), chance.choice([1, 2])], [chance.randint(5, 9), chance.randint(4, 7)]
    for number in range(chance.randint(1, 4)):
        first = chance.randint(0, 4)
        allowed = chance.choice([(0,), (1,), (0, 1), (1, 0)])
        taken = {}
        for memory in allowed:
            step, size = align[memory] * chance.choice([1, 1, 2]), chance.randint(0, 5)
            low = step * chance.choice([0, 0, 1])
            if low + size <= ends[memory]:
                taken[memory], steps[number, memory], lowest[number, memory] = size, step, low
                costs[number, memory] = chance.randint(0, 9)
        items.append(Item(first, first + chance.randint(1, 4), taken))
    return Placement(items, [Memory(end, end) for end in ends], steps, lowest), costs


def packs(placement: Placement, memory: int, numbers: Sequence[int]) -> bool:
    """Whether items have offsets in a memory at which no two share a byte at a moment."""

    def choices(number: int) -> range:
        last = placement.memories[memory].end - placement.items[number].size_in[memory]
        return range(placement.lowest[number, memory], last + 1, placement.steps[number, memory])

    def is_apart(one: tuple[int, int], other: tuple[int, int]) -> bool:
        (a, low), (b, start) = one, other
        first, second = placement.items[a], placement.items[b]
        sizes = first.size_in[memory], second.size_in[memory]
        lives = first.first < second.end and second.first < first.end
        return not (lives and all(sizes) and low < start + sizes[1] and start < low + sizes[0])

    for offsets in itertools.product(*map(choices, numbers)):
        if all(itertools.starmap(is_apart, itertools.combinations(zip(numbers, offsets, strict=True), 2))):
            return True
    return False


def least(placement: Placement, costs: dict[tuple[int, int], int], *, offsets: bool) -> int | None:
    """Cost of the cheapest memories that fit, by trying all of them."""
    best = None
    for memory_of in itertools.product(*(item.size_in for item in placement.items)):
        fits = True
        for memory in range(len(placement.memories)):
            numbers = [number for number, at in enumerate(memory_of) if at == memory]
            for moment in range(10):
                live = (placement.items[n] for n in numbers if placement.items[n].first <= moment < placement.items[n].end)
                fits = fits and sum(item.size_in[memory] for item in live) <= placement.memories[memory].capacity
            fits = fits and (not offsets or packs(placement, memory, numbers))
        if fits:
            cost = sum(costs[place] for place in enumerate(memory_of))
            best = cost if best is None else min(best, cost)
    return best


def solved(placement: Placement, costs: dict[tuple[int, int], int], *, offsets: bool) -> int | None:
    model = cp_model.CpModel()
    places = Places(model, placement)
    for memory in range(len(placement.memories)):
        places.add_loads(memory)
        if offsets:
            places.add_offsets(memory)
    model.minimize(places.total(costs))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    if solver.solve(model) != cp_model.OPTIMAL:
        return None
    memory_of = places.chosen_memories(solver.value)
    if offsets:
        found = places.offsets(solver.value, memory_of)
        assert found.keys() == set(range(len(placement.items)))
        model.clear_hints()
        for variable, value in places.hint_values(memory_of, [found[number] for number in range(len(found))]):
            model.add(variable == value)
        # Its own solution, as a hint, is a solution.
        assert solver.solve(model) == cp_model.OPTIMAL
    return sum(costs[place] for place in enumerate(memory_of))


@pytest.mark.parametrize("offsets", [False, True])
def test_the_cheapest_places_are_found(offsets: bool) -> None:
    found = []
    for seed in range(150):
        placement, costs = by_lot(seed)
        found.append(solved(placement, costs, offsets=offsets))
        assert found[-1] == least(placement, costs, offsets=offsets), seed
    assert 5 < found.count(None) < 100


def test_items_that_always_live_are_counted_at_every_moment() -> None:
    items = [Item(0, 9, {0: 4, 1: 4}), Item(0, 9, {0: 3, 1: 3}), Item(2, 4, {0: 3, 1: 3}), Item(4, 6, {0: 3, 1: 3})]
    costs = {(number, memory): 10 * memory for number in range(4) for memory in range(2)}
    for always in ((), (0, 1)):
        placement = Placement(items, [Memory(7, 7), Memory(99, 99)], {}, {}, always)
        assert len(placement.maximal_live_sets) == 2
        # Either both that live shortly, or one of the others, are elsewhere.
        assert solved(placement, costs, offsets=False) == 10


def test_places_can_be_excluded() -> None:
    placement = Placement([Item(0, 1, {0: 1, 1: 1}), Item(0, 1, {0: 1, 1: 1})], [Memory(9, 9), Memory(9, 9)], {}, {})
    model = cp_model.CpModel()
    places = Places(model, placement)
    places.exclude(0, [0, 1])
    model.minimize(places.total({(0, 1): 2, (1, 1): 3}))
    solver = cp_model.CpSolver()
    assert solver.solve(model) == cp_model.OPTIMAL
    assert places.chosen_memories(solver.value) == [1, 0]
