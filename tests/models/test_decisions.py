"""What two plans do differently, kind by kind."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stowplan
from stowplan.kernel.kind import kind_of
from stowplan.models.banked_packing.plan import Plan as BankedPlan
from stowplan.models.decisions import Part, field_by_field
from stowplan.models.hint import longest_ascending
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.modulo_scheduling.plan import Plan as Schedule
from stowplan.models.operator_order.plan import Plan as Order
from stowplan.models.tier_placement.plan import Plan as MemoryMap
from tests.kernel.fakes import ladder_problem
from tests.paths import EXAMPLES
from tests.toys.sums.plan import Plan as SumsPlan


def changes(part: Part) -> list[tuple[str, str, Any, Any]]:
    return [(each.name, each.change, each.before, each.after) for each in part.changes]


def test_residencies_fast_uses_and_copies() -> None:
    problem = ladder_problem()
    names = [tensor.name for tensor in problem.tensors]

    def plan(residencies: list[Residency], copies: list[Copy], fast: tuple[int, ...]) -> Plan:
        return Plan(problem=problem.digest, objective=0, residencies=tuple(residencies), copies=tuple(copies), fast_uses=fast)

    first = plan(
        [Residency(0, 1, 4, 0), Residency(0, 6, 8, 0), Residency(1, 2, 3, 8)],
        [Copy(0, "in", 0, 1), Copy(0, "in", 5, 6)],
        (0, 1),
    )
    second = plan(
        [Residency(0, 3, 5, 16), Residency(0, 8, 9, 0), Residency(1, 2, 3, 8)],
        [Copy(0, "in", 0, 1), Copy(1, "out", 3, 4)],
        (1, 2),
    )
    residencies, uses, copies = kind_of(problem).diff(problem, first, second)
    assert residencies.total == 4
    assert changes(residencies) == [
        (names[0], "moved", {"start": 1, "end": 4, "offset": 0}, {"start": 3, "end": 5, "offset": 16}),
        (names[0], "dropped", {"start": 6, "end": 8, "offset": 0, "preloaded": False}, None),
        (names[0], "added", None, {"start": 8, "end": 9, "offset": 0, "preloaded": False}),
    ]
    assert (uses.total, [each.change for each in uses.changes]) == (3, ["dropped", "added"])
    assert [(each.name, each.change) for each in copies.changes] == [
        (f"{names[0]} in", "dropped"),
        (f"{names[1]} out", "added"),
    ]


@given(st.lists(st.integers(0, 50), unique=True, max_size=8))
def test_as_few_operators_moved_as_can_be(values: list[int]) -> None:
    stay = longest_ascending(values)
    kept = [value for at, value in enumerate(values) if at in stay]
    assert kept == sorted(kept)
    longer = itertools.combinations(values, len(kept) + 1)
    assert not any(list(each) == sorted(each) for each in longer)


def test_an_operator_that_goes_to_the_back_moves_alone() -> None:
    problem = stowplan.read(EXAMPLES / "cells.graph.json")
    ids = [op.id for op in problem.ops]
    count, sizes = len(ids), len(problem.tensors)

    def plan(order: list[int]) -> Order:
        return Order(problem=problem.digest, objective=0, arena=0, order=tuple(order), offsets=(0,) * sizes)

    operators, tensors = kind_of(problem).diff(problem, plan([*range(count)]), plan([*range(1, count), 0]))
    assert changes(operators) == [(ids[0], "moved", {"position": 0}, {"position": count - 1})]
    assert (operators.total, tensors.changes) == (count, ())


def test_tensors_that_changed_tier() -> None:
    problem = stowplan.read(EXAMPLES / "resnet50.layers.json", target="nnp-i")
    count = len(problem.layers)

    def plan(first_output: int) -> MemoryMap:
        return MemoryMap(
            problem=problem.digest, objective=0, weight_tiers=(0,) * count, output_tiers=(first_output, *(0,) * (count - 1))
        )

    (tensors,) = kind_of(problem).diff(problem, plan(0), plan(2))
    tiers = [tier.name for tier in problem.tiers]
    assert changes(tensors) == [(f"{problem.layers[0].name} output", "moved", {"tier": tiers[0]}, {"tier": tiers[2]})]


def test_instructions_that_changed_tile_or_time() -> None:
    problem = stowplan.read(EXAMPLES / "saxpy.dfg.json", target="se")
    count, edges = len(problem.instructions), len(problem.edges)

    def plan(tile: int, time: int, delay: int) -> Schedule:
        return Schedule(
            problem=problem.digest,
            objective=0,
            ii=1,
            makespan=1,
            tiles=(tile, *(0,) * (count - 1)),
            times=(time, *(0,) * (count - 1)),
            slots=(0,) * count,
            routes=((),) * edges,
            delays=(delay, *(0,) * (edges - 1)),
            starts=(0,),
        )

    instructions, values = kind_of(problem).diff(problem, plan(1, 2, 0), plan(1, 3, 1))
    assert changes(instructions) == [(problem.instructions[0].id, "moved", {"time": 2}, {"time": 3})]
    assert [(each.before, each.after) for each in values.changes] == [({"delay": 0}, {"delay": 1})]


def test_buffers_that_changed_bank() -> None:
    problem = stowplan.read(EXAMPLES / "banks.json")
    count = len(problem.buffers)

    def plan(bank: int) -> BankedPlan:
        return BankedPlan(problem=problem.digest, objective=0, banks=(bank, *(0,) * (count - 1)), offsets=(0,) * count)

    (buffers,) = kind_of(problem).diff(problem, plan(0), plan(1))
    names = [bank.name for bank in problem.banks]
    assert changes(buffers) == [(problem.buffers[0].id, "moved", {"bank": names[0]}, {"bank": names[1]})]


def test_kinds_that_say_nothing_are_compared_field_by_field() -> None:
    first, second = (SumsPlan(problem="", objective=0, chosen=chosen) for chosen in ((0, 1), (0, 2)))
    (chosen,) = field_by_field(first, second)
    assert (chosen.what, chosen.total) == ("chosen", 2)
    assert changes(chosen) == [("chosen[1]", "moved", {"value": 1}, {"value": 2})]


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("alexnet_inf_b1.hlo.txt.gz", "teaching"),
        ("attention.hlo.txt", "inferentia"),
        ("resnet50.layers.json", "nnp-i"),
        ("cells.graph.json", None),
    ],
)
def test_plans_that_cost_nothing_both_ways_round(name: str, target: str | None) -> None:
    problem = stowplan.read(EXAMPLES / name, target=target)
    kind = kind_of(problem)
    plans = [plan for plan in kind.initial(problem).values() if kind.verify(problem, plan).ok]
    assert plans
    mirror = {"added": "dropped", "dropped": "added", "moved": "moved"}
    for first, second in itertools.product(plans, plans):
        for forth, back in zip(
            kind_of(problem).diff(problem, first, second), kind_of(problem).diff(problem, second, first), strict=True
        ):
            assert (forth.what, forth.total) == (back.what, back.total)
            assert {(each.name, each.change, str(each.before)) for each in forth.changes} == {
                (each.name, mirror[each.change], str(each.after)) for each in back.changes
            }
            assert first != second or not forth.changes
