"""Machines, tables and the simulator: plans give the numbers that NumPy gives, and spoilt tables do not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks.lib.modulo_scheduling import kernels
from stowplan.errors import InputError, UsageError, VerificationError
from stowplan.frontends.dfg import carried, lower, trace
from stowplan.hardware.se import compare, configure, grid, load_machine, machine_names, run_graph, simulate, streaming_engine
from stowplan.hardware.se import configuration as configurations
from stowplan.hardware.se.configuration import Configuration
from stowplan.hardware.se.reference import OPERATIONS, Lanes, compute, generic_operation, make_data
from stowplan.models.modulo_scheduling import cpsat
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Pin, Problem, Rules
from stowplan.models.modulo_scheduling.verify import verify
from tests.models.modulo_scheduling.cases import graph, linked_problem, random_problem, varied_problem


def solved(problem: Problem) -> Plan:
    plan = cpsat.solve(problem, time_limit=10).plan
    assert plan is not None
    return plan


def test_streaming_engine() -> None:
    machine = streaming_engine()
    assert (machine.tiles, machine.latency) == (16, 3)
    assert [end for end, clocks in enumerate(machine.one_link[8]) if clocks is not None] == [6, 7, 8, 9, 10]
    assert machine.one_link[8][6] == 2
    assert machine.any_links[0][15] == 15


def test_named_machines(tmp_path: Path) -> None:
    for name in machine_names():
        assert load_machine(name).name == name
    for long, short in (("streaming-engine", "se"), ("streaming-engine-latency-4", "se-latency-4")):
        assert load_machine(long) == load_machine(short)
        assert load_machine(long).name == short
        assert long not in machine_names()
    file = tmp_path / "mine.toml"
    file.write_text('name = "mine"\nrows = 2\ncolumns = 3\nlinks = [{ name = "right", rows = 0, columns = 1 }]\n')
    assert load_machine(file).tiles == 6
    file.write_text('name = "mine"\nrows = 2\nspeed = 3\nlinks = []\n')
    with pytest.raises(InputError, match=r"mine\.toml.*speed"):
        load_machine(str(file))
    with pytest.raises(InputError, match="expected one of adres-4x4"):
        load_machine("warp-drive")


def test_distance_is_a_distance() -> None:
    problem = lower(kernels.distance())
    data = make_data(problem, 7)
    run = compare(problem, solved(problem), 7, data=data)
    expected = sum((data[axis] - data[f"{axis}0"]) ** 2 for axis in "xyz")
    assert np.allclose(run.values[problem.instructions[-1].id], expected)


def fft_data(points: int, signal: Lanes, *, inverse: bool) -> dict[str, Lanes]:
    """Data for the variables of the kernel: ``signal`` has shape ``[iterations, points, lanes]``, complex."""
    data: dict[str, Lanes] = {f"x{k}": signal[:, k] for k in range(points)}
    for stage in range(1, points.bit_length()):
        for k in range(points):
            angle = 2j * np.pi * (k % 2**stage) / 2**stage * (1 if inverse else -1)
            data[f"w{stage}_{k}"] = np.full(signal.shape[2], np.exp(angle))
    return data


@pytest.mark.parametrize("inverse", [False, True])
def test_fft_is_a_fourier_transform(inverse: bool) -> None:
    problem = lower(kernels.fft(8, inverse=inverse))
    chance = np.random.default_rng(3)
    signal = chance.normal(size=(4, 8, 2)) + 1j * chance.normal(size=(4, 8, 2))
    data = fft_data(8, signal, inverse=inverse)
    plans: list[Plan] = []
    cpsat.solve(problem, time_limit=60, on_plan=plans.append, should_stop=lambda: bool(plans))
    run = compare(problem, plans[0], 4, data=data)
    found = np.stack([run.values[f"s3_{k}"] for k in range(8)], axis=1)
    expected = 8 * np.fft.ifft(signal, axis=1) if inverse else np.fft.fft(signal, axis=1)
    assert np.allclose(found, expected)


def test_the_run_takes_as_long_as_the_plan_says() -> None:
    problem = graph("a>b b>c a>c", streaming_engine())
    plan = solved(problem)
    for iterations in (1, 5):
        assert compare(problem, plan, iterations).clocks == (iterations - 1) * plan.ii + plan.makespan


def test_random_plans_give_the_right_numbers() -> None:
    done = 0
    for seed in range(80):
        problem = (random_problem, varied_problem)[seed % 2](seed)
        plan = cpsat.solve(problem, time_limit=10).plan
        if plan is not None:
            compare(problem, plan, 5, seed=seed)
            done += 1
    assert done > 40


def test_linked_flows_give_the_right_numbers_at_any_latency() -> None:
    done = 0
    for seed in range(80):
        problem = linked_problem(seed)
        plan = cpsat.solve(problem, time_limit=10).plan
        if plan is None or problem.is_synchronous:
            continue
        assert compare(problem, plan, 5, seed=seed).clocks == 4 * plan.ii + plan.makespan, seed
        for other in range(3):
            compare(problem, plan, 7, seed=other, wandering=True)
        done += 1
    assert done > 25


def test_spoilt_linked_flows_show() -> None:
    """Whatever the verifier finds wrong with a moved instruction or another interface, the simulator finds too."""
    shown = dict.fromkeys(("moved", "asked", "late"), 0)
    for seed in range(90):
        problem = linked_problem(seed)
        plan = cpsat.solve(problem, time_limit=10).plan
        if plan is None or not problem.accesses:
            continue
        for number in range(len(plan.tiles)):
            for tile in range(problem.machine.tiles):
                tiles = (*plan.tiles[:number], tile, *plan.tiles[number + 1 :])
                spoilt = msgspec.structs.replace(plan, tiles=tiles)
                found = verify(problem, spoilt).violations
                is_split = any(each.code == "variable_split" and "value of" in each.message for each in found)
                if (is_split or "slot_taken" in {each.code for each in found}) and "broken_route" not in {
                    e.code for e in found
                }:
                    with pytest.raises(VerificationError):
                        compare(problem, spoilt, 6)
                    shown["moved"] += 1
        for number in problem.accesses:
            for which in range(len(problem.machine.interfaces)):
                interfaces = (*plan.interfaces[:number], which, *plan.interfaces[number + 1 :])
                spoilt = msgspec.structs.replace(plan, interfaces=interfaces)
                if not verify(problem, spoilt).ok:
                    with pytest.raises(VerificationError, match=r"free port|does not serve"):
                        compare(problem, spoilt, 6)
                    shown["asked"] += 1
        fabric = problem.machine.asynchronous
        assert fabric is not None
        slow = msgspec.structs.replace(fabric, memory_latency=fabric.memory_latency + 9)
        slower = msgspec.structs.replace(problem, machine=msgspec.structs.replace(problem.machine, asynchronous=slow))
        if "launched_early" in {each.code for each in verify(slower, plan).violations}:
            # Slower than the plan says, and right all the same.
            late = compare(slower, plan, 6).clocks > 5 * plan.ii + plan.makespan
            shown["late"] += late
    assert min(shown.values()) > 5, shown


def test_recurrences_start_with_their_initial_values() -> None:
    def sums(x: object) -> object:
        before = carried(initial=10.0)
        return before.becomes(before + x)  # type: ignore[operator]

    problem = lower(trace(sums))
    data = make_data(problem, 6)
    run = compare(problem, solved(problem), 6, data=data)
    assert np.allclose(run.values[problem.instructions[0].id], 10.0 + np.cumsum(data["x"], axis=0))


def test_values_pass_through() -> None:
    pins = (Pin(instruction="a", tile=0), Pin(instruction="b", tile=7), Pin(instruction="c", tile=3))
    problem = graph("a>b a>c b>d c>d", streaming_engine(), rules=Rules(pass_through=True), pins=pins)
    plan = solved(problem)
    tables = configure(problem, plan)
    assert any(spoke.forwards for tile in tables.tiles for spoke in tile.spokes)
    assert "passes to" in tables.table()
    compare(problem, plan, 5)


def test_a_mesh_runs_too() -> None:
    problem = graph("a>b a>c b>d c>d d>a:1", grid(3, 3), rules=Rules(siblings="none"))
    compare(problem, solved(problem), 6)


def spoilt(tables: Configuration, name: str, **changes: object) -> Configuration:
    """Tables with fields changed in the first operand of an instruction that comes over a link."""
    tiles = []
    for tile in tables.tiles:
        entries = [
            msgspec.structs.replace(entry, inputs=(msgspec.structs.replace(entry.inputs[0], **changes), *entry.inputs[1:]))
            if entry.id == name
            else entry
            for entry in tile.instructions
        ]
        tiles.append(msgspec.structs.replace(tile, instructions=tuple(entries)))
    return msgspec.structs.replace(tables, tiles=tuple(tiles))


def test_spoilt_tables_show() -> None:
    problem = graph("a>c b>c c>d", streaming_engine())
    plan = solved(problem)
    tables = configure(problem, plan)
    data = make_data(problem, 5)
    right = run_graph(problem, data, 5)
    assert all(np.allclose(simulate(tables, data, 5).values[name], values) for name, values in right.items())
    delay = next(each.inputs[0].delay for tile in tables.tiles for each in tile.instructions if each.id == "c")
    for changes in ({"delay": delay + 1}, {"port": "feedback"}):
        with pytest.raises(VerificationError, match="finds nothing"):
            simulate(spoilt(tables, "c", **changes), data, 5)
    wrong = spoilt(tables, "c", port="constant", constant=2.0)
    assert not np.allclose(simulate(wrong, data, 5).values["d"], right["d"])
    silent = [msgspec.structs.replace(tile, spokes=(configurations.Spoke(),) * plan.ii) for tile in tables.tiles]
    with pytest.raises(VerificationError, match="0 of 20 results"):
        simulate(msgspec.structs.replace(tables, tiles=tuple(silent)), data, 5)


def test_an_invalid_plan_gives_no_numbers() -> None:
    problem = graph("a>b b>c", streaming_engine())
    plan = solved(problem)
    elsewhere = next(tile for tile in range(16) if tile not in plan.tiles)
    tiles = (plan.tiles[0], elsewhere, plan.tiles[2])
    with pytest.raises(VerificationError):
        compare(problem, msgspec.structs.replace(plan, tiles=tiles), 4)


def test_tables(tmp_path: Path) -> None:
    problem = lower(kernels.distance())
    plan = solved(problem)
    tables = configure(problem, plan)
    tables.save(tmp_path / "tables.json")
    assert configurations.Configuration.load(tmp_path / "tables.json") == tables
    text = tables.table()
    assert "II 1, latency 15 clocks" in text
    assert len(text.splitlines()) == 2 + len(problem.instructions)
    assert sum(len(tile.instructions) for tile in tables.tiles) == len(problem.instructions)
    base = [spoke for tile in tables.tiles for spoke in tile.spokes if spoke.master == "base"]
    assert len(base) == 3


def test_operations() -> None:
    one, two, three = np.array([5.0, -3.0]), np.array([2.0, 4.0]), np.array([1.0, 1.0])
    assert list(compute("madd", [one, two, three], 2)) == [11.0, -11.0]
    assert list(compute("select", [np.array([0.0, 1.0]), one, two], 2)) == [2.0, -3.0]
    assert list(compute("xor", [np.array([6.0, 1.0]), np.array([3.0, 1.0])], 2)) == [5.0, 0.0]
    for op in OPERATIONS:
        assert compute(op, [], 3).shape == (3,), op
        # Operands that change places are noticed where their roles are unknown.
        if op in ("store", "merge", "branch"):
            assert not np.allclose(compute(op, [one, two], 2), compute(op, [two, one], 2))


def test_generic_operations() -> None:
    """Their operands are told apart, and so are they."""
    one, two = np.array([5.0, -3.0]), np.array([2.0, 4.0])
    warp, weft = generic_operation("warp"), generic_operation("weft")
    assert np.allclose(compute(warp, [one, two], 2), compute(warp, [one, two], 2))
    assert not np.allclose(compute(warp, [one, two], 2), compute(warp, [two, one], 2))
    assert not np.allclose(compute(warp, [one, two], 2), compute(weft, [one, two], 2))
    assert np.isfinite(compute(warp, [1e300 * one], 2)).all()


def test_bad_data() -> None:
    problem = lower(kernels.vector_add())
    with pytest.raises(UsageError, match="no data for the variable 'b'"):
        run_graph(problem, {"a": np.zeros((3, 2))}, 3)
    with pytest.raises(UsageError, match="shape"):
        run_graph(problem, {"a": np.zeros((3, 2)), "b": np.zeros(2)}, 3)
    with pytest.raises(UsageError, match="lanes"):
        run_graph(problem, {"a": np.zeros((3, 2)), "b": np.zeros((3, 1))}, 3)
