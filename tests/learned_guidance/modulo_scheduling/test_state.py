"""Partial mappings: masks against the rules in plain Python and against brute force, plans against the verifier."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks.lib.modulo_scheduling import kernels
from stowplan.errors import InputError
from stowplan.frontends.dfg import lower
from stowplan.hardware.se import compare
from stowplan.learned_guidance.modulo_scheduling.body import Body, topological_order
from stowplan.learned_guidance.modulo_scheduling.state import Mapping
from stowplan.models.modulo_scheduling.bounds import least_ii
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Pin, Problem, Rules, Variable
from stowplan.models.modulo_scheduling.verify import verify
from tests.learned_guidance.modulo_scheduling import plain
from tests.models.modulo_scheduling.brute_force import Reference
from tests.models.modulo_scheduling.cases import graph, line, linked_problem, random_problem, varied_problem


def single_links(seed: int, most: int = 6, make: Callable[[int, int], Problem] = random_problem) -> Problem:
    problem = make(seed, most)
    return msgspec.structs.replace(problem, rules=msgspec.structs.replace(problem.rules, pass_through=False))


def play(mapping: Mapping, chance: random.Random) -> None:
    """Any legal place for each instruction, as long as there is one."""
    while mapping.current >= 0 and not mapping.stuck:
        places = np.argwhere(mapping.mask())
        mapping.place(*(int(each) for each in chance.choice(places)))


@pytest.mark.parametrize("part", range(4))
def test_masks_and_times_are_those_of_the_plain_rules(part: int) -> None:
    """On 280 random problems with all rules but ``pass_through``, step by step; complete mappings are valid plans."""
    complete = 0
    for seed in range(70 * part, 70 * part + 70):
        chance = random.Random(seed)
        problem = single_links(seed, make=varied_problem if seed % 3 == 0 else random_problem)
        rules = plain.Rules(problem)
        ii = chance.randint(1, problem.machine.spoke_depth)
        mapping, placed = Mapping(problem, ii, look_ahead=False), {}
        while mapping.current >= 0:
            number = mapping.current
            legal = rules.legal(placed, number, ii)
            assert {(int(tile), int(slot)) for tile, slot in np.argwhere(mapping.mask())} == legal, seed
            assert mapping.stuck == (not legal)
            if not legal:
                break
            placed[number] = chance.choice(sorted(legal))
            mapping.place(*placed[number])
            times = rules.times(placed, ii)
            assert {each: int(mapping.time[each]) for each in placed} == times, seed
            assert mapping.makespan == max(times[each] + problem.latencies[each] for each in placed)
        else:
            complete += 1
            for list_scheduled in (False, True):
                plan = mapping.plan(list_scheduled=list_scheduled)
                assert verify(problem, plan).ok, (seed, verify(problem, plan).violations)
            if not any(operand.instruction is None for each in problem.instructions for operand in each.operands):
                compare(problem, plan, 5)
    assert complete > 10


@pytest.mark.parametrize("look_ahead", [False, True])
@pytest.mark.parametrize("make", [random_problem, varied_problem, linked_problem])
def test_no_mask_bars_a_plan(make: Callable[[int, int], Problem], look_ahead: bool) -> None:
    """Every plan that brute force finds can be played."""
    found = 0
    for seed in range(50):
        problem = single_links(seed, 4, make)
        reference = Reference(problem)
        for ii in range(1, problem.machine.spoke_depth + 1):
            last = max((pin.time or 0 for pin in problem.pins), default=0) + 3 * ii
            for (tiles, times), _ in zip(reference.plans(ii, last), range(12), strict=False):
                mapping = Mapping(problem, ii, look_ahead=look_ahead)
                while mapping.current >= 0:
                    number = mapping.current
                    assert mapping.mask()[tiles[number], times[number] % ii], (seed, ii, tiles, times)
                    assert mapping.ready[tiles[number]] <= times[number]
                    mapping.place(tiles[number], times[number] % ii)
                assert (mapping.time <= times).all()
                found += 1
    assert found > 60


def test_complete_mappings_of_linked_flows_are_plans() -> None:
    """With memory accesses and values over the asynchronous fabric; but for values that do not fit, which show at the end."""
    complete = misfits = 0
    for seed in range(300):
        problem, chance = single_links(seed, 5, linked_problem), random.Random(seed)
        mapping = Mapping(problem, chance.randint(1, problem.machine.spoke_depth), look_ahead=seed % 2 == 0)
        play(mapping, chance)
        if mapping.stuck:
            continue
        complete += 1
        for list_scheduled in (False, True):
            try:
                plan = mapping.plan(list_scheduled=list_scheduled)
            except ValueError:
                misfits += 1
            else:
                assert verify(problem, plan).ok, (seed, verify(problem, plan).violations)
    assert complete > 60
    assert misfits < 0.4 * complete, (misfits, complete)


def test_looking_ahead_bars_dead_ends() -> None:
    """Far fewer plays of the FFT get stuck."""
    body, chance = Body(lower(kernels.fft(8), inputs="instructions")), random.Random(0)
    stuck = {False: 0, True: 0}
    for look_ahead in stuck:
        for _ in range(20):
            mapping = Mapping(body, 6, look_ahead=look_ahead)
            play(mapping, chance)
            stuck[look_ahead] += mapping.stuck
    assert stuck[False] >= 15
    assert stuck[True] <= 10


def test_the_order_is_topological_and_keeps_operands_close() -> None:
    problem = lower(kernels.fft(8), inputs="instructions")
    order = topological_order(problem).tolist()
    at = {number: place for place, number in enumerate(order)}
    assert sorted(order) == list(range(len(problem.instructions)))
    assert all(at[edge.source] < at[edge.target] for edge in problem.edges if edge.distance == 0)
    # A butterfly comes after its own two inputs, not after all eight.
    assert order[2] not in plain.Rules(problem).sources


def test_long_chains_have_an_order() -> None:
    problem = graph(" ".join(f"i{number}>i{number + 1}" for number in range(3000)))
    assert topological_order(problem).tolist() == list(range(3001))


def test_a_recurrence_moves_what_was_placed_before() -> None:
    """``b`` waits for a slow operand, and ``a`` reads its last value: ``a`` comes later by whole intervals, in its slot."""
    problem = graph("s>t t>u u>b a>b b>a:1", line(spoke_depth=8))
    places = {"s": (0, 0), "t": (0, 3), "u": (0, 1), "a": (1, 2), "b": (1, 5)}
    mapping, seen = Mapping(problem, 6), []
    while mapping.current >= 0:
        mapping.place(*places[problem.instructions[mapping.current].id])
        seen.append(int(mapping.time[problem.number["a"]]))
    assert seen == [-1, -1, -1, 2, 8]
    assert mapping.time.tolist() == [0, 3, 7, 11, 8]
    assert verify(problem, mapping.plan()).ok


def test_partial_placements() -> None:
    problem = graph("a>b b>c a>d")
    mapping = Mapping(problem, 2, fixed={"c": (1, 0), "a": (2, 1)})
    assert (mapping.placed, mapping.tile.tolist(), mapping.slot.tolist()) == (2, [2, -1, 1, -1], [1, -1, 0, -1])
    play(mapping, random.Random(0))
    assert verify(problem, mapping.plan()).ok
    for fixed, message in (
        ({"x": (0, 0)}, "found 'x' among the fixed instructions"),
        ({"a": (4, 0)}, "found a fixed on tile 4, slot 0, expected a place that breaks no rule at II 2"),
        ({"a": (0, 0), "b": (0, 0)}, "found b fixed on tile 0, slot 0"),
        ({"a": (0, 0), "b": (3, 0)}, "found b fixed on tile 3, slot 0"),
    ):
        with pytest.raises(InputError, match=message):
            Mapping(problem, 2, fixed=fixed)


def test_pins_and_bound_variables() -> None:
    problem = graph("a>b b>c", pins=(Pin(instruction="b", tile=2, time=5), Pin(instruction="c", slot=1)))
    mapping = Mapping(problem, 2)
    # Tile 0 reaches tile 2, where b is to stand; after the clock 0, and not too late for the clock 5.
    assert {int(tile) for tile, _ in np.argwhere(mapping.mask())} == {0, 1, 2, 3}
    play(mapping, random.Random(1))
    assert (mapping.tile[1], mapping.time[1], mapping.slot[2]) == (2, 5, 1)
    assert verify(problem, mapping.plan()).ok


def test_what_must_share_a_tile_finds_room() -> None:
    """The first reader of a variable leaves its tile to the others."""
    read = Operand(variable="v")
    problem = Problem(
        instructions=(
            Instruction(id="a", op="add", operands=(read,)),
            Instruction(id="b", op="add", operands=(Operand(instruction="a"),)),
            Instruction(id="c", op="add", operands=(Operand(instruction="b"), read)),
        ),
        machine=line(2),
        variables=(Variable(id="v", words=1),),
    )
    mapping = Mapping(problem, 2)
    mapping.place(0, 0)
    assert mapping.mask().tolist() == [[False, False], [True, True]]
    mapping.place(1, 1)
    assert mapping.mask().tolist() == [[False, True], [False, False]]


def test_ready_times() -> None:
    problem = graph("a>b", line(4))
    mapping = Mapping(problem, 4)
    assert mapping.ready.tolist() == [0, 0, 0, 0]
    mapping.place(0, 1)
    assert mapping.ready.tolist() == [4, 5, 6, -1]


def test_refusals() -> None:
    problem = graph("a>b")
    with pytest.raises(InputError, match=r"rules\.pass_through: found the rule pass_through, expected single links"):
        Mapping(graph("a>b", rules=Rules(pass_through=True)), 1)
    for ii in (0, 5):
        with pytest.raises(InputError, match=f"found an initiation interval of {ii}, expected 1 to 4"):
            Mapping(problem, ii)
    mapping = Mapping(problem, 1)
    with pytest.raises(ValueError, match="partial mapping"):
        mapping.plan()
    for place in ((0, 1), (4, 0), (-1, 0)):
        with pytest.raises(ValueError, match="for a, expected a place that the mask allows"):
            mapping.place(*place)
    play(mapping, random.Random(0))
    with pytest.raises(ValueError, match="everything is placed"):
        mapping.place(0, 0)


def test_copies_are_independent() -> None:
    problem = lower(kernels.fft(8), inputs="instructions")
    mapping = Mapping(problem, 6, look_ahead=True)
    mapping.place(*(int(each) for each in np.argwhere(mapping.mask())[7]))
    other = mapping.copy()
    before = {name: np.copy(getattr(mapping, name)) for name in ("tile", "slot", "time", "ready")}
    mask: Any = mapping.mask().copy()
    play(other, random.Random(0))
    assert all((getattr(mapping, name) == values).all() for name, values in before.items())
    assert (mapping.mask() == mask).all()
    assert mapping.placed == 1
    play(mapping, random.Random(0))
    assert mapping.tile.tolist() == other.tile.tolist()


def test_a_loop_of_one_instruction_needs_its_interval() -> None:
    problem = graph("a>a:1 a>b", line(spoke_depth=4))
    assert least_ii(problem) == 3
    assert Mapping(problem, 2).stuck
    assert not Mapping(problem, 3).stuck
