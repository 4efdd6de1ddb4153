"""The verifier finds every kind of fault in plans that were valid."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from stowplan.models.modulo_scheduling import cpsat
from stowplan.models.modulo_scheduling.assemble import make_plan
from stowplan.models.modulo_scheduling.machine import AsynchronousFabric, Interface, Registers
from stowplan.models.modulo_scheduling.plan import Plan, encode_objective
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Pin, Problem, Rules, Variable
from stowplan.models.modulo_scheduling.structure import Structure
from stowplan.models.modulo_scheduling.verify import Code, verify
from tests.models.modulo_scheduling.cases import graph, line


def solved(problem: Problem) -> Plan:
    plan = cpsat.solve(problem, time_limit=20).plan
    assert plan is not None
    assert verify(problem, plan).ok
    return plan


def codes(problem: Problem, plan: Plan) -> set[str]:
    return {violation.code for violation in verify(problem, plan).violations}


def placed(
    problem: Problem, ii: int, tiles: list[int], times: list[int], routes: list[tuple[int, ...]], **changes: Any
) -> Plan:
    """A plan with everything that follows from places and routes."""
    machine = problem.machine
    delays = tuple(
        times[e.target]
        + ii * e.distance
        - times[e.source]
        - machine.latency
        - sum(machine.links[link % 4].clocks for link in route)
        for e, route in zip(problem.edges, routes, strict=True)
    )
    makespan = max(times) + machine.latency
    values: dict[str, Any] = {
        "problem": problem.digest,
        "objective": encode_objective(ii, makespan),
        "ii": ii,
        "makespan": makespan,
        "tiles": tuple(tiles),
        "times": tuple(times),
        "slots": tuple(time % ii for time in times),
        "routes": tuple(routes),
        "delays": delays,
        "starts": (0,),
        **changes,
    }
    return Plan(**values)


CHAIN = graph("a>b b>c")
UP, DOWN, FAR_UP, FAR_DOWN = range(4)


def changed(**changes: Any) -> set[str]:
    return codes(CHAIN, msgspec.structs.replace(solved(CHAIN), **changes))


def test_plan_alone() -> None:
    plan = solved(CHAIN)
    assert changed(problem="x") == {"wrong_problem"}
    assert changed(tiles=plan.tiles[:2]) == {"wrong_count"}
    assert changed(delays=(0,)) == {"wrong_count"}
    assert "ii_out_of_range" in changed(ii=0)
    assert "ii_out_of_range" in changed(ii=5)
    assert "no_such_tile" in changed(tiles=(4, *plan.tiles[1:]))
    assert "time_out_of_range" in changed(times=(-1, *plan.times[1:]))
    assert "time_out_of_range" in changed(times=(*plan.times[:2], 999_998))
    assert changed(slots=(1, *plan.slots[1:])) == {"wrong_slot"}
    assert changed(delays=(plan.delays[0] + 1, plan.delays[1])) == {"wrong_delay"}
    assert changed(makespan=plan.makespan + 1) == {"wrong_makespan"}
    assert changed(objective=plan.objective + 1) == {"wrong_objective"}
    assert changed(starts=()) == {"wrong_starts"}
    assert changed(starts=(1,)) == {"wrong_starts"}


@pytest.mark.parametrize(
    ("edges", "ii", "tiles", "times", "routes", "expected"),
    [
        ("a>b", 1, [0, 1], [0, 4], [(DOWN,)], set()),
        ("a>b", 1, [0, 1], [0, 3], [(DOWN,)], {"too_early"}),
        ("a>b", 1, [0, 0], [0, 3], [()], {"slot_taken"}),
        ("a>b", 2, [0, 0], [0, 3], [()], set()),
        ("a>b", 1, [0, 1], [0, 4], [(UP,)], {"broken_route"}),
        ("a>b", 1, [0, 1], [0, 4], [(7,)], {"broken_route"}),
        ("a>b", 1, [0, 1], [0, 5], [(FAR_DOWN,)], {"broken_route"}),
        ("a>b", 1, [0, 2], [0, 5], [(DOWN, DOWN)], {"too_many_links"}),
        ("a>b", 1, [0, 2], [0, 5], [(FAR_DOWN,)], set()),
        ("a>b", 1, [0, 3], [0, 6], [(DOWN, FAR_DOWN)], {"too_many_links"}),
        ("a>b a>c", 2, [1, 2, 2], [0, 4, 5], [(DOWN,), (DOWN,)], {"siblings_share"}),
        ("a>b a>c", 2, [1, 2, 0], [0, 4, 5], [(DOWN,), (UP,)], set()),
        ("a b", 2, [1, 1], [0, 1], [], {"starts_share"}),
        ("a b", 2, [1, 2], [0, 1], [], set()),
        ("a>a:1", 2, [1], [0], [()], {"too_early"}),
        ("a>a:1", 3, [1], [0], [()], set()),
    ],
)
def test_places(edges: str, ii: int, tiles: list[int], times: list[int], routes: Any, expected: set[str]) -> None:
    problem = graph(edges)
    starts = (0, 1) if edges == "a b" else (0,)
    assert codes(problem, placed(problem, ii, tiles, times, routes, starts=starts)) == expected


def test_detour_and_taken_link() -> None:
    through = Rules(pass_through=True)
    problem = graph("a>b", rules=through)
    assert codes(problem, placed(problem, 1, [0, 1], [0, 7], [(FAR_DOWN, UP)])) == {"detour"}
    assert codes(problem, placed(problem, 1, [0, 3], [0, 6], [(FAR_DOWN, DOWN)])) == set()
    # What a sends from 0 to 2 by way of 1 leaves tile 1 when the result of b does.
    two = graph("a>b b>c a>c", line(4), rules=Rules(pass_through=True))
    routes = [(DOWN,), (DOWN,), (DOWN, DOWN)]
    plan = placed(two, 2, [0, 1, 2], [0, 4, 8], routes)
    assert codes(two, plan) == set()
    late = placed(two, 1, [0, 1, 2], [0, 4, 8], routes)
    assert codes(two, late) == {"link_taken"}


def test_delays_and_pins() -> None:
    problem = graph("a>b", rules=Rules(max_delay=1), pins=(Pin(instruction="a", tile=0, time=1, slot=1),))
    assert codes(problem, placed(problem, 2, [0, 1], [1, 6], [(DOWN,)])) == set()
    assert codes(problem, placed(problem, 2, [0, 1], [1, 7], [(DOWN,)])) == {"delay_too_long"}
    assert codes(problem, placed(problem, 2, [0, 1], [2, 6], [(DOWN,)])) == {"moved"}
    assert codes(problem, placed(problem, 2, [1, 2], [1, 6], [(DOWN,)])) == {"moved"}


def test_memory() -> None:
    reads = tuple(Instruction(id=name, op="add", operands=(Operand(variable=name.lower()),)) for name in ("U", "V", "W"))
    reads += (Instruction(id="X", op="add", operands=(Operand(variable="u"), Operand(instruction="U"))),)
    variables = (Variable(id="u", words=300), Variable(id="v", tile=2), Variable(id="w", words=800))
    problem = Problem(instructions=reads, variables=variables, machine=line(4, instruction_depth=2))
    starts = (0, 1, 2)
    good = placed(problem, 3, [0, 2, 1, 0], [0, 0, 0, 4], [()], starts=starts)
    assert codes(problem, good) == set()
    assert codes(problem, placed(problem, 3, [0, 2, 1, 1], [0, 0, 0, 4], [(DOWN,)], starts=starts)) == {
        "variable_split",
        "memory_full",
    }
    assert codes(problem, placed(problem, 3, [0, 3, 1, 0], [0, 0, 0, 4], [()], starts=starts)) == {"wrong_memory"}
    full = placed(problem, 3, [0, 2, 0, 0], [0, 0, 2, 4], [()], starts=starts)
    assert codes(problem, full) == {"memory_full", "starts_share", "instruction_ram_full"}


def test_latencies_and_tiles_of_their_own() -> None:
    slow = Instruction(id="a", op="mul", latency=5, tiles=(1, 2))
    quick = Instruction(id="b", op="add", operands=(Operand(instruction="a"),), latency=1)
    problem = Problem(instructions=(slow, quick), machine=line())

    def mapped(ii: int, tiles: list[int], times: list[int]) -> Plan:
        makespan = max(times[0] + 5, times[1] + 1)
        changes = {"delays": (times[1] - times[0] - 5,), "makespan": makespan, "objective": encode_objective(ii, makespan)}
        return placed(problem, ii, tiles, times, [()], **changes)

    assert codes(problem, mapped(3, [1, 1], [0, 5])) == set()
    assert codes(problem, mapped(3, [3, 3], [0, 5])) == {"wrong_tile"}
    assert codes(problem, mapped(4, [1, 1], [0, 8])) == {"slot_taken"}
    # At II 3 the results of b at clock 8 and of a at clock 5 are there in one slot.
    assert codes(problem, mapped(3, [1, 1], [0, 7])) == {"result_taken"}
    assert codes(problem, mapped(3, [1, 1], [0, 4])) == {"result_taken", "too_early"}


#: A load whose answer starts a flow of two; nominal clocks are 4 for memory, 2 from tile to tile.
FABRIC = AsynchronousFabric(latency=2, memory_latency=4, interfaces=(Interface(name="m"), Interface(name="n", tiles=(0,))))
LOADED = Problem(
    instructions=(
        Instruction(id="l", op="load", memory="load"),
        Instruction(id="r", op="add", operands=(Operand(instruction="l"),)),
        Instruction(id="s", op="store", operands=(Operand(instruction="l"), Operand(instruction="r")), memory="store"),
    ),
    machine=line(asynchronous=FABRIC, memory_depth=2),
)


def loaded(ii: int, tiles: list[int], times: list[int], problem: Problem = LOADED, **changes: Any) -> set[str]:
    """Codes of a plan of the load, and of what reads its value over the asynchronous fabric."""
    routes = [(), (), *[()] * (len(problem.edges) - 2)]
    plan = placed(problem, ii, tiles, times, routes, interfaces=(0, None, 1), starts=(0, 1))
    delays = tuple(delay - 4 * edge.asynchronous for edge, delay in zip(problem.edges, plan.delays, strict=True))
    return codes(problem, msgspec.structs.replace(plan, **{"delays": delays, **changes}))


def test_memory_and_linked_flows() -> None:
    assert loaded(4, [1, 0, 0], [0, 7, 10]) == set()
    assert loaded(4, [1, 0, 0], [0, 7, 10], delays=(1, 3, 0)) == {"wrong_delay"}
    assert loaded(4, [1, 0, 0], [0, 7, 10], routes=((), (0,), ())) == {"broken_route"}
    # The store's flow begins with r.
    assert loaded(4, [1, 0, 0], [1, 7, 10]) == {"launched_early"}
    assert "variable_split" in loaded(4, [1, 1, 0], [0, 7, 10])
    # 12 clocks and more from the launch of the load to the last reader: four iterations at once at II 4.
    assert loaded(4, [1, 0, 0], [0, 7, 14]) == set()
    assert loaded(4, [1, 0, 0], [0, 7, 18]) == {"memory_full"}
    assert loaded(4, [1, 0, 0], [0, 7, 10], interfaces=(1, None, 0)) == {"wrong_interface"}
    assert loaded(4, [1, 0, 0], [0, 7, 10], interfaces=(0, 0, 1)) == {"wrong_interface"}
    assert loaded(4, [1, 0, 0], [0, 7, 10], interfaces=(2, None, 1)) == {"wrong_interface"}
    assert loaded(4, [1, 0, 0], [0, 7, 10], interfaces=()) == {"wrong_count"}
    # Requests at clocks 3 and 15: one slot of two, and one port.
    assert loaded(4, [1, 0, 0], [0, 7, 12], interfaces=(0, None, 0)) == {"port_taken"}
    assert loaded(4, [1, 0, 0], [0, 7, 12], interfaces=(0, None, 1)) == set()
    assert loaded(4, [1, 0, 0], [0, 7, 13], interfaces=(0, None, 0)) == set()


def test_values_that_are_sent_have_no_limit_on_their_delay() -> None:
    problem = msgspec.structs.replace(LOADED, rules=Rules(max_delay=1))
    assert loaded(4, [1, 0, 0], [0, 11, 14], problem) == set()
    assert loaded(4, [1, 0, 0], [0, 9, 14], problem) == {"delay_too_long"}


def test_other_readings() -> None:
    problem = graph("a>c b>c", rules=Rules(siblings="consumers_and_producers", starts="source"))
    routes = [(DOWN,), (DOWN,)]
    plan = placed(problem, 2, [1, 2, 1], [0, 5, 1], routes, starts=(0, 2))
    assert codes(problem, plan) == {"siblings_share", "starts_share"}
    assert codes(problem, msgspec.structs.replace(plan, starts=(0,))) == {"siblings_share", "wrong_starts"}


NEIGHBOURS = tuple(msgspec.structs.replace(link, clocks=0) for link in line().links[:2])


@pytest.mark.parametrize(
    ("output", "count", "tiles", "times", "routes", "expected"),
    [
        # The value of a waits in its tile for c, which is elsewhere, while b has its result there.
        (True, None, [0, 0, 1], [0, 1, 2], [(), (DOWN,)], {"register_overwritten"}),
        (True, None, [0, 0, 1], [0, 2, 2], [(), (DOWN,)], set()),
        # Where it waits in the tile of c, nothing overwrites it.
        (False, 1, [0, 0, 1], [0, 1, 2], [(), (DOWN,)], set()),
        (False, 0, [0, 0, 1], [0, 1, 2], [(), (DOWN,)], {"registers_full"}),
        (False, 0, [0, 0, 1], [0, 2, 1], [(), (DOWN,)], {"registers_full"}),
        (False, 0, [0, 0, 1], [0, 1, 1], [(), (DOWN,)], set()),
        # The same value for both needs one register in a tile; in its own, it needs one beside the output register.
        (False, 1, [0, 0, 0], [0, 2, 3], [(), ()], set()),
        (True, 0, [0, 0, 1], [0, 2, 1], [(), (DOWN,)], {"registers_full"}),
        # A register is written again after an interval.
        (True, None, [0, 1, 1], [0, 4, 5], [(DOWN,), (DOWN,)], {"delay_too_long"}),
    ],
)
def test_registers(
    output: bool, count: int | None, tiles: list[int], times: list[int], routes: Any, expected: set[str]
) -> None:
    machine = line(2, links=NEIGHBOURS, latency=1, registers=Registers(output=output, count=count))
    problem = graph("a>b a>c", machine, rules=Rules(siblings="none"))
    assert codes(problem, placed(problem, 4, tiles, times, routes)) == expected
    plan = make_plan(Structure(problem), 4, tiles, times)
    assert (plan is None) == bool(expected)


def test_every_code_is_reached_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert not [code for code in get_args(Code) if f'"{code}"' not in text]
