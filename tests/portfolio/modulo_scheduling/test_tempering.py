"""Parallel tempering of placements: what it counts, what it finds, and what the search gains by it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from itertools import combinations

import msgspec
import numpy as np
import pytest

import stowplan
from benchmarks.lib.modulo_scheduling.kernels import fft
from stowplan.frontends.dfg import lower
from stowplan.hardware.se import load_machine
from stowplan.hardware.se.machines import grid, streaming_engine
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Problem, Rules, Variable
from stowplan.models.modulo_scheduling.verify import verify
from stowplan.portfolio.modulo_scheduling.body import FAR, Body, at_ii, build
from stowplan.portfolio.modulo_scheduling.search import PARAMS, MappingSearch, Tally, begin, list_scheduling
from stowplan.portfolio.modulo_scheduling.tempering import PARAMS as PARAMS_TEMPERING
from stowplan.portfolio.modulo_scheduling.tempering import State, Tempering, cost, moves


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


def broken_rules(body: Body, ii: int, tile: list[int], time: Mapping[int, int]) -> int:
    """As the module says it, in plain Python."""
    group, hops = body.group, np.array(body.hops)
    links = {(group[e.source], group[e.target]) for e in body.structure.between if group[e.source] != group[e.target]}
    total = sum(int(max(1, body.steps[tile[a], tile[b]] - 1)) for a, b in links if hops[tile[a], tile[b]] == FAR)
    total += sum(tile[a] == tile[b] for a, others in enumerate(body.apart) for b in others if a < b)
    for at in range(body.tiles):
        load = sum(len(members) for members, where in zip(body.members, tile, strict=True) if where == at)
        words = sum(each for each, where in zip(body.words, tile, strict=True) if where == at)
        total += max(0, load - ii) + (words > body.room)
    component = body.structure.component
    for e in body.structure.between:
        if component[e.source] == component[e.target]:
            one, two = tile[group[e.source]], tile[group[e.target]]
            way = hops[one, two] if hops[one, two] < FAR else 2 * body.steps[one, two]
            total += max(0, int(time[e.source] + body.latency[e.source] + way - ii * e.distance - time[e.target]))
    for one, two in combinations(body.structure.slotted, 2):
        if tile[group[one]] == tile[group[two]]:
            total += (time[one] - time[two]) % ii == 0
            if not body.structure.has_one_latency:
                total += (time[one] + body.latency[one] - time[two] - body.latency[two]) % ii == 0
    return int(total)


def slow(problem: Problem) -> Problem:
    """The same with latencies that differ."""
    return msgspec.structs.replace(
        problem,
        instructions=tuple(
            msgspec.structs.replace(each, latency=4 if number % 5 == 0 else None)
            for number, each in enumerate(problem.instructions)
        ),
    )


def shared(problem: Problem) -> Problem:
    """The same with variables that put pairs of instructions onto one tile."""
    return msgspec.structs.replace(
        problem,
        variables=tuple(Variable(id=f"v{number}") for number in range(4)),
        instructions=tuple(
            msgspec.structs.replace(each, writes=(f"v{number // 7}",)) if number % 7 == 0 and number < 28 else each
            for number, each in enumerate(problem.instructions)
        ),
    )


@pytest.mark.parametrize("change", [lambda problem: problem, slow, shared])
@pytest.mark.parametrize("seed", range(3))
def test_the_cost_is_kept_up_to_date(seed: int, change: Callable[[Problem], Problem]) -> None:
    body = Body(change(woven(40, seed, carried=20)))
    ii = body.least_ii
    data = at_ii(build(body), body, ii)
    chance = np.random.default_rng(seed)
    state = State(
        tile=chance.integers(0, body.tiles, len(body.members)),
        time=chance.integers(0, 20, body.count),
        issued=np.zeros((body.tiles, ii), np.int64),
        done=np.zeros((body.tiles, ii), np.int64),
        load=np.zeros(body.tiles, np.int64),
        held=np.zeros(body.tiles, np.int64),
        chance=np.array([seed + 1], np.int64),
    )
    now = cost(data, state)
    for _ in range(20):
        assert now == broken_rules(body, ii, state.tile.tolist(), dict(enumerate(state.time.tolist())))
        now = moves(data, state, 50, now, 0.5, 0.3)
    assert now == cost(data, state)


@pytest.mark.parametrize("seed", range(4))
def test_places_break_no_rule(seed: int) -> None:
    body = Body(woven(40, seed, carried=20))
    ii = body.least_ii + 2
    made: list[int] = []
    run = Tempering(body, ii, (seed,))
    found = None
    while found is None and sum(made) < 200_000:
        found = run.search(10_000, lambda: False, made.append)
    assert found is not None
    tiles, times = found
    assert sorted(times) == body.structure.slotted
    assert broken_rules(body, ii, tiles, times) == 0
    assert 0 < sum(made) <= 200_000 + PARAMS_TEMPERING.sweep * len(body.members)
    assert Tempering(body, ii, (seed,)).search(200_000, lambda: True, made.append) is None


def test_cycles_have_no_clock_for_links() -> None:
    """Six clocks of latency at an interval of seven: one clock is left, and there and back takes two."""
    one = Instruction(id="a", op="add", operands=(Operand(instruction="b", distance=1),), tiles=(0,))
    other = Instruction(id="b", op="add", operands=(Operand(instruction="a"),), tiles=(0, 1, 2))
    body = Body(Problem(instructions=(one, other), machine=streaming_engine()))
    for seed in range(8):
        found = Tempering(body, 7, (seed,)).search(5_000, lambda: False, lambda count: None)
        assert found is not None
        assert found[0] == [0, 0]


def fan(blocks: int, length: int) -> Problem:
    """A recurrence that fans out into three chains and comes together, several times: its instructions want the same slots."""
    instructions = [Instruction(id="b0", op="add", operands=(Operand(instruction=f"b{blocks}", distance=1),))]
    for block in range(blocks):
        ends = []
        for chain in range(3):
            before = f"b{block}"
            for at in range(length):
                instructions.append(Instruction(id=f"c{block}.{chain}.{at}", op="add", operands=(Operand(instruction=before),)))
                before = instructions[-1].id
            ends.append(Operand(instruction=before))
        instructions.append(Instruction(id=f"b{block + 1}", op="add", operands=tuple(ends)))
    return Problem(instructions=tuple(instructions), machine=grid(1, 3))


def test_instructions_on_a_recurrence_find_slots() -> None:
    problem = fan(3, 3)
    body = Body(problem)
    assert len(body.structure.recurrent) == body.count == 31
    ii = body.least_ii + 1
    tally = Tally(body)
    run = MappingSearch(tally, 0)
    for _ in range(2):
        if tally.best is None:
            run._temper(ii, lambda: False)
    assert tally.best is not None
    assert tally.best.ii == ii
    assert verify(problem, tally.best).ok


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
    found = Tempering(body, 2, (0,)).search(100_000, lambda: False, lambda count: None)
    assert found is not None
    assert all(found[0][body.group[at]] == at for at in range(9) if at % 3)


def interval(problem: Problem, work: int, *, tempering: bool = True) -> int:
    """What the search reaches with so much work; every plan is verified."""
    tally = Tally(Body(problem), tempering=tempering)
    list_scheduling(tally, 0, lambda: False)
    run = MappingSearch(tally, 1)
    while tally.work < work and (tally.best is None or tally.best.ii > tally.body.least_ii):
        run.step(tally.body.least_ii, lambda: tally.work >= work)
    assert tally.best is not None
    assert verify(problem, tally.best).ok
    return tally.best.ii


def test_the_search_gains_by_it() -> None:
    problem = woven(60, 0)
    assert interval(problem, 6_000) < interval(problem, 6_000, tempering=False)


def test_the_same_seed_gives_the_same_placement() -> None:
    body = Body(woven(60, 1))
    found = []
    for _ in range(2):
        run = Tempering(body, body.least_ii, (5,))
        found.append([run.search(10_000, lambda: False, lambda count: None) for _ in range(4)])
        found[-1].append([replica.state.tile.tolist() for replica in run._replicas])
    assert found[0] == found[1]


def test_replicas_keep_their_costs() -> None:
    """At an II that is too small for a plan, no replica ever gets to a cost of 0, however often replicas are exchanged."""
    body = Body(woven(60, 2, carried=10))
    run = Tempering(body, 2, (0,))
    made: list[int] = []
    for _ in range(5):
        assert run.search(20_000, lambda: False, made.append) is None
    assert sum(made) >= 100_000
    assert len(run._replicas) == PARAMS_TEMPERING.replicas
    assert run._rounds > 5
    for replica in run._replicas:
        times = dict(enumerate(replica.state.time.tolist()))
        assert replica.cost == broken_rules(body, 2, replica.state.tile.tolist(), times) > 0
    # The coldest replicas break the fewest rules, up to chance.
    assert run._replicas[0].cost < run._replicas[-1].cost


def test_a_search_goes_on_where_it_was_stopped() -> None:
    body = Body(woven(60, 3))
    whole, parts = Tempering(body, 2, (1,)), Tempering(body, 2, (1,))
    sweep = PARAMS_TEMPERING.sweep * len(body.members)
    for run, counts in ((whole, [sweep, 15 * sweep]), (parts, [sweep, 5 * sweep, 5 * sweep, 5 * sweep])):
        for count in counts:
            assert run.search(count, lambda: False, lambda moves: None) is None
    assert [replica.cost for replica in whole._replicas] == [replica.cost for replica in parts._replicas]


def test_list_scheduling_gives_way_to_tempering() -> None:
    """On a butterfly network, list scheduling fails at one II after the other; tempering then finds the first schedule."""
    problem = lower(fft(16), load_machine("se"), rules=Rules(), inputs="variables")
    tally = Tally(Body(problem))
    assert begin(tally, 0, lambda: False)
    assert tally.best is None
    assert PARAMS.first_placements <= tally.placements < 2 * PARAMS.first_placements
    run = MappingSearch(tally, 0)
    while tally.best is None and tally.work < 100_000:
        run.step(tally.body.least_ii, lambda: False)
    assert tally.best is not None
    assert verify(problem, tally.best).ok
    # Without tempering, list scheduling goes on.
    alone = Tally(Body(problem), tempering=False)
    assert not begin(alone, 0, lambda: alone.placements > 4 * PARAMS.first_placements)
    assert alone.placements > 4 * PARAMS.first_placements


def test_a_deterministic_run_ends_if_tempering_finds_nothing() -> None:
    """Two instructions that must be on different tiles of a machine with a single tile: no placement is valid."""
    instructions = (
        Instruction(id="a", op="add"),
        *(Instruction(id=name, op="add", operands=(Operand(instruction="a"),)) for name in ("b", "c")),
    )
    problem = Problem(instructions=instructions, machine=grid(1, 1))
    result = stowplan.solve(problem, deterministic=True, work_limit=0.1, time_limit=60, candidates=["search"])
    assert result.plan is None or verify(problem, result.plan).ok
    assert result.seconds < 60
