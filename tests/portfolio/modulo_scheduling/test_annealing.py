"""Annealing of placements: what it counts, what it finds, and what the search gains by it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from stowplan.hardware.se.machines import grid, streaming_engine
from stowplan.models.modulo_scheduling.differences import positive_cycle
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Problem
from stowplan.models.modulo_scheduling.verify import verify
from stowplan.portfolio.modulo_scheduling import annealing, search
from stowplan.portfolio.modulo_scheduling.annealing import Annealing, State, cost, moves
from stowplan.portfolio.modulo_scheduling.body import FAR, Body
from stowplan.portfolio.modulo_scheduling.search import Search, Tally, list_scheduling


def woven(size: int, seed: int, *, carried: int = 0) -> Problem:
    """Instructions with one or two operands from the last eight, at most two readers a value; some edges come around again."""
    chance = random.Random(seed)
    readers = [0] * size
    instructions = []
    for at in range(size):
        near = [each for each in range(max(0, at - 8), at) if readers[each] < 2]
        sources = chance.sample(near, min(2 if chance.random() < 0.6 else 1, len(near)))
        for each in sources:
            readers[each] += 1
        operands = [Operand(instruction=f"i{each}") for each in sources]
        if at < carried:
            operands.append(Operand(instruction=f"i{at + 3}", distance=4))
        instructions.append(Instruction(id=f"i{at}", op="add", operands=tuple(operands)))
    return Problem(instructions=tuple(instructions), machine=streaming_engine())


def broken_rules(body: Body, data: annealing.Data, tile: list[int]) -> int:
    """As the module says it, in plain Python."""
    group, hops = body.group, np.array(body.hops)
    links = {(group[e.source], group[e.target]) for e in body.structure.between if group[e.source] != group[e.target]}
    total = sum(int(max(1, body.steps[tile[a], tile[b]] - 1)) for a, b in links if hops[tile[a], tile[b]] == FAR)
    total += sum(tile[a] == tile[b] for a, others in enumerate(body.apart) for b in others if a < b)
    for at in range(body.tiles):
        load = sum(len(members) for members, where in zip(body.members, tile, strict=True) if where == at)
        words = sum(each for each, where in zip(body.words, tile, strict=True) if where == at)
        total += max(0, load - data.slots) + (words > body.room)
    return total


@pytest.mark.parametrize("seed", range(4))
def test_the_cost_is_kept_up_to_date(seed: int) -> None:
    body = Body(woven(40, seed))
    data = Annealing(body, seed)._data(3)
    chance = np.random.default_rng(seed)
    state = State(
        chance.integers(0, body.tiles, len(body.members)),
        np.zeros(body.tiles, np.int64),
        np.zeros(body.tiles, np.int64),
        np.array([seed + 1], np.int64),
    )
    now = cost(data, state)
    for _ in range(20):
        assert now == broken_rules(body, data, state.tile.tolist())
        now = moves(data, state, 50, now, 0.5, 0.3)
    assert now == cost(data, state)


@pytest.mark.parametrize("seed", range(4))
def test_placements_break_no_rule(seed: int) -> None:
    body = Body(woven(40, seed, carried=20))
    run = Annealing(body, seed)
    ii = body.least_ii + 2
    made = []
    tiles = run.place(ii, 200_000, lambda: False, made.append)
    assert tiles is not None
    assert broken_rules(body, run._data(ii), tiles) == 0
    assert run._broken_cycles(ii, np.array(tiles)) == []
    assert 0 < sum(made) <= 200_000
    assert run.place(ii, 200_000, lambda: True, made.append) is None


def test_cycles_have_no_clock_for_links() -> None:
    """Six clocks of latency at an interval of seven: one clock is left, and there and back takes two."""
    one = Instruction(id="a", op="add", operands=(Operand(instruction="b", distance=1),), tiles=(0,))
    other = Instruction(id="b", op="add", operands=(Operand(instruction="a"),), tiles=(0, 1, 2))
    body = Body(Problem(instructions=(one, other), machine=streaming_engine()))
    learned = 0
    for seed in range(8):
        run = Annealing(body, seed)
        tiles = run.place(7, 5_000, lambda: False, lambda count: None)
        assert tiles == [0, 0]
        learned += bool(run._cycles)
    assert learned


def test_cycles() -> None:
    ways = [(0, 0, 1, 3), (1, 1, 2, 3), (2, 2, 0, -7), (3, 1, 0, -4)]
    assert positive_cycle(3, ways) == []
    assert sorted(positive_cycle(3, [*ways, (9, 2, 0, -5)])) == [0, 1, 9]
    assert positive_cycle(1, [(4, 0, 0, 1)]) == [4]


def test_another_machine_and_tiles_of_ones_own() -> None:
    machine = grid(3, 3)
    instructions = tuple(
        Instruction(
            id=str(at),
            op="add",
            operands=(Operand(instruction=str(at - 1)),) if at else (),
            tiles=(at,) if at % 3 else None,
        )
        for at in range(9)
    )
    body = Body(Problem(instructions=instructions, machine=machine))
    tiles = Annealing(body, 0).place(2, 100_000, lambda: False, lambda count: None)
    assert tiles is not None
    assert all(tiles[body.group[at]] == at for at in range(9) if at % 3)


def interval(problem: Problem, work: int) -> int:
    """What the search reaches with so much work; every plan is verified."""
    tally = Tally(Body(problem))
    list_scheduling(tally, 0, lambda: False)
    run = Search(tally, 1)
    while tally.work < work and (tally.best is None or tally.best.ii > tally.body.least_ii):
        run.step(tally.body.least_ii, lambda: tally.work >= work)
    assert tally.best is not None
    assert verify(problem, tally.best).ok
    return tally.best.ii


def test_the_search_gains_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = woven(60, 0)
    with_it = interval(problem, 6_000)
    monkeypatch.setattr(search, "_can_anneal", lambda body: False)
    assert with_it < interval(problem, 6_000)


def test_the_same_seed_gives_the_same_placement() -> None:
    body = Body(woven(60, 1))
    found = [Annealing(body, 5).place(body.least_ii + 1, 60_000, lambda: False, lambda count: None) for _ in range(2)]
    assert found[0] == found[1]
