"""Loads and stores over the asynchronous fabric: the graph is cut into flows, and its numbers stay."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest

from stowplan.errors import InputError
from stowplan.frontends.dfg import Dfg, lower, parse_rules
from stowplan.hardware.se import compare, grid, run_graph, streaming_engine
from stowplan.models.modulo_scheduling import cpsat
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Problem
from stowplan.models.modulo_scheduling.verify import verify


def random_graph(seed: int, count: int = 14, later: float = -0.25) -> Dfg:
    """Loads, stores and arithmetic, with recurrences, some of them through memory."""
    chance = random.Random(seed)
    instructions = []
    for at in range(count):
        op = chance.choice(["add", "add", "mul", "load", "load", "store"])
        operands = [
            Operand(instruction=f"i{chance.randrange(at)}", distance=chance.choice([0, 0, 0, 1]), initial=0.5)
            for _ in range(chance.choice([0, 1, 1, 2] if at else [0]))
        ]
        if chance.random() < 0.25:
            back = chance.randrange(at, count)
            operands.append(Operand(instruction=f"i{back}", distance=chance.choice([1, 2, 9]), initial=later))
        instructions.append(Instruction(id=f"i{at}", op=op, operands=tuple(operands)))
    return Dfg(f"random {seed}", tuple(instructions))


def cut(graph: Dfg) -> Problem:
    return lower(graph, inputs="instructions", memory="asynchronous")


def test_numbers_stay() -> None:
    linked = 0
    for seed in range(100):
        graph = random_graph(seed)
        before, after = lower(graph, inputs="instructions"), cut(graph)
        plain, sent = run_graph(before, {}, 5), run_graph(after, {}, 5)
        for instruction in graph.instructions:
            assert np.allclose(plain[instruction.id], sent[instruction.id]), (seed, instruction.id)
        linked += len(set(after.flows)) > len(set(before.flows))
    assert linked > 50


def test_what_is_sent_has_one_reader() -> None:
    for seed in range(100):
        # Where all start with one value; else a copy of an earlier iteration cannot serve them all.
        problem = cut(random_graph(seed, later=0.5))
        sent = [edge.source for edge in problem.edges if edge.asynchronous]
        readers = {(edge.source, edge.target) for edge in problem.edges if edge.asynchronous}
        assert len(readers) == len(set(sent)), seed
        for number, instruction in enumerate(problem.instructions):
            assert (instruction.memory is not None) == (instruction.op in ("load", "store"))
            assert (number in problem.accesses) == (instruction.memory is not None)


def test_recurrences_without_memory_stay_whole() -> None:
    """A sum of what is loaded: the addition and its own value are one flow."""
    index = Instruction(id="i", op="add", operands=(Operand(instruction="i", distance=1), Operand(constant=1.0)))
    load = Instruction(id="x", op="load", operands=(Operand(instruction="i"),))
    total = Instruction(id="s", op="add", operands=(Operand(instruction="s", distance=1), Operand(instruction="x")))
    scaled = Instruction(id="j", op="mul", operands=(Operand(constant=2.0), Operand(constant=3.0)))
    store = Instruction(id="w", op="store", operands=(Operand(instruction="s"), Operand(instruction="j")))
    problem = cut(Dfg("sum", (index, load, total, scaled, store)))
    edges = {
        (problem.instructions[each.source].id, problem.instructions[each.target].id): each.asynchronous
        for each in problem.edges
    }
    # What only the second level reads is computed there.
    assert edges == {
        ("i", "i"): False,
        ("i", "x"): False,
        ("s", "s"): False,
        ("x", "s"): True,
        ("s", "w"): False,
        ("j", "w"): False,
    }
    plan = cpsat.solve(problem, time_limit=20).plan
    assert plan is not None
    assert verify(problem, plan).ok
    assert (plan.ii, plan.makespan) == (3, 114)
    assert compare(problem, plan, 6).clocks == 5 * 3 + 114
    compare(problem, plan, 12, wandering=True)


@pytest.mark.parametrize("seed", [0, 5, 8])
def test_cut_graphs_run(seed: int) -> None:
    problem = cut(random_graph(seed, 8))
    plans = []
    cpsat.solve(problem, time_limit=20, on_plan=plans.append, should_stop=lambda: bool(plans))
    assert plans
    assert compare(problem, plans[0], 5).clocks == 4 * plans[0].ii + plans[0].makespan
    compare(problem, plans[0], 9, seed=seed, wandering=True)


def test_a_machine_without_interfaces() -> None:
    graph = random_graph(1)
    with pytest.raises(InputError, match="mesh-4x4 has no memory interfaces"):
        lower(graph, grid(4, 4), inputs="instructions", memory="asynchronous")
    arithmetic = Dfg("plain", (Instruction(id="a", op="add"),))
    assert lower(arithmetic, grid(4, 4), memory="asynchronous") == lower(arithmetic, grid(4, 4))


def test_a_cycle_without_a_distance_is_named() -> None:
    one = Instruction(id="a", op="load", operands=(Operand(instruction="b"),))
    two = Instruction(id="b", op="add", operands=(Operand(instruction="a"),))
    first = Instruction(id="c", op="add")
    reads = Instruction(id="d", op="add", operands=(Operand(instruction="c"), Operand(instruction="b")))
    late = msgspec.structs.replace(one, operands=(Operand(instruction="b"), Operand(instruction="c")))
    with pytest.raises(InputError, match="without a distance"):
        cut(Dfg("circle", (late, two, first, reads)))


def test_the_rule() -> None:
    assert parse_rules(["memory=asynchronous"]).memory == "asynchronous"
    assert len(streaming_engine().interfaces) == 4
