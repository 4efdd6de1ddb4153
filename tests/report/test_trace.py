"""Traces of plans: the format that viewers take, and that they show what is in the plan."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import stowplan
from stowplan.errors import UsageError
from stowplan.report.presenter import presenter_for
from stowplan.report.trace import Group, Slice, Trace, encode, in_rows
from tests.cli.conftest import Cli, cli, error_line
from tests.kernel.conftest import OF_EACH_KIND
from tests.models.rematerialization.test_host import PLAN as HOST_PLAN
from tests.models.rematerialization.test_host import PROBLEM as HOST
from tests.paths import EXAMPLES

__all__ = ["cli"]

#: Kinds whose plans say nothing of time.
WITHOUT_TIME = {"bank_mapping", "llm_placement"}


class Shown:
    """A trace file as a viewer takes it; the constructor checks the format."""

    def __init__(self, data: bytes):
        content = json.loads(data)
        assert {*content} == {"otherData", "traceEvents"}
        names: dict[tuple[str, int], str] = {}
        self.slices: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
        self.counters: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
        for event in content["traceEvents"]:
            if event["ph"] == "M":
                if event["name"] in ("process_name", "thread_name"):
                    number = event["tid" if "tid" in event else "pid"]
                    # No two rows have the same number, and none that of a group, whatever their groups are.
                    assert number not in {other for _, other in names} or "tid" not in event
                    names[event["name"], number] = event["args"]["name"]
                continue
            assert event["ts"] >= 0
            group = names["process_name", event["pid"]]
            if event["ph"] == "X":
                assert event["dur"] >= 0
                self.slices[group][names["thread_name", event["tid"]]].append(event)
            else:
                assert event["ph"] == "C"
                self.counters[group, event["name"]].append((event["ts"], event["args"]["bytes"]))
        for rows in self.slices.values():
            for row in rows.values():
                row.sort(key=lambda event: (event["ts"], event["dur"]))
                # Perfetto accepts no slices of one row that overlap in part.
                assert all(first["ts"] + first["dur"] <= second["ts"] + 1e-6 for first, second in pairwise(row))
        for values in self.counters.values():
            assert values == sorted(values, key=lambda pair: pair[0])
            assert min(value for _, value in values) >= 0
            assert values[-1][1] == 0

    def all(self, group: str, row: str = "") -> list[dict[str, Any]]:
        return [event for name, events in self.slices[group].items() if name.startswith(row) for event in events]

    def peak(self, group: str, name: str = "in use") -> int:
        return max(value for _, value in self.counters[group, name])

    def check_sums(self, group: str) -> None:
        """The counter of a memory is the sum of the residencies at each of its moments."""
        values = self.counters[group, "in use"]
        for (begin, value), (end, _) in pairwise(values):
            if begin < end:
                stays = [event for event in self.all(group) if event["ts"] <= begin < event["ts"] + event["dur"]]
                assert sum(event["args"]["bytes"] for event in stays) == value


def solved(kind: str) -> tuple[Any, Any, Shown]:
    """A problem of a kind, a plan of it, and its trace."""
    name, target = OF_EACH_KIND[kind]
    problem = stowplan.read(EXAMPLES / name, target or ("order" if kind == "operator_order" else None))
    plan = stowplan.solve(problem, candidates="heuristic", deterministic=True, work_limit=0.05, time_limit=300).plan
    return problem, plan, Shown(encode(problem, plan, presenter_for(problem).trace(problem, plan)))


def test_packing() -> None:
    problem, plan, shown = solved("packing")
    shown.check_sums("arena")
    offsets = dict(zip([buffer.id for buffer in problem.buffers], plan.offsets, strict=True))
    assert {event["name"]: event["args"]["offset"] for event in shown.all("arena")} == offsets
    assert shown.peak("arena") <= plan.objective


def test_banked_packing() -> None:
    problem, plan, shown = solved("banked_packing")
    placed = 0
    for number, bank in enumerate(problem.banks):
        names = {buffer.id for buffer, at in zip(problem.buffers, plan.banks, strict=True) if at == number}
        assert {event["name"] for event in shown.all(bank.name)} == names
        placed += len(names)
        if names:
            shown.check_sums(bank.name)
            assert shown.peak(bank.name) <= bank.capacity
    assert placed == len(problem.buffers)


def test_operator_order() -> None:
    problem, plan, shown = solved("operator_order")
    assert [event["name"] for event in shown.all("operators")] == [problem.ops[op].id for op in plan.order]
    assert shown.peak("operators", "live") == plan.objective
    assert max(event["args"]["offset"] + event["args"]["bytes"] for event in shown.all("arena")) == plan.arena


def test_memory_mapping() -> None:
    problem, plan, shown = solved("memory_mapping")
    assert len(shown.all("fast memory")) == len(plan.residencies) > 0
    assert len(shown.all("copies")) == len(plan.copies) > 0
    for direction in ("in", "out"):
        names = Counter(event["name"] for event in shown.all("copies", direction))
        copied = (copy.tensor for copy in plan.copies if copy.direction == direction)
        assert names == Counter(problem.tensors[tensor].name for tensor in copied)
    steps = shown.all("program", "steps")
    assert [event["name"] for event in steps] == [step.name for step in problem.steps]
    waits = sum(event["dur"] for event in shown.all("program", "waits"))
    # A trace counts nanoseconds, and every step may be rounded.
    assert sum(event["dur"] for event in steps) + waits == pytest.approx(plan.objective / 1e6, abs=0.001 * (len(steps) + 1))
    assert 0 < shown.peak("fast memory") <= problem.capacity


def test_tier_placement() -> None:
    problem, plan, shown = solved("tier_placement")
    layers = shown.all("layers")
    assert [event["name"] for event in layers] == [layer.name for layer in problem.layers]
    assert layers[-1]["ts"] + layers[-1]["dur"] == pytest.approx(plan.objective / 1e6, abs=0.002)
    bytes_in_all = sum(layer.weight_bytes + layer.output_bytes for layer in problem.layers)
    assert sum(event["args"]["bytes"] for tier in problem.tiers for event in shown.all(tier.name)) == bytes_in_all
    for tier in problem.tiers:
        assert shown.peak(tier.name) <= tier.capacity


def test_rematerialization() -> None:
    problem, plan, shown = solved("rematerialization")
    assert [event["name"] for event in shown.all("operators")] == [problem.ops[op].id for op in plan.sequence]
    assert shown.peak("operators", "live") == plan.peak
    runs = Counter(plan.sequence)
    assert max(event["args"]["run"] for event in shown.all("operators")) == max(runs.values())


def test_rematerialization_with_a_host() -> None:
    """``x`` is sent while ``shrink`` runs; ``grow`` waits until it has left, and ``end`` until it is back."""
    shown = Shown(encode(HOST, HOST_PLAN, presenter_for(HOST).trace(HOST, HOST_PLAN)))
    runs = {event["name"]: (event["ts"], event["dur"]) for event in shown.all("operators")}
    assert runs == {"make": (0, 5), "shrink": (5, 2), "grow": (8, 2), "reduce": (10, 1), "end": (14, 1)}
    for direction, begin in (("send", 5), ("fetch", 11)):
        assert [(event["name"], event["ts"], event["dur"]) for event in shown.all("copies", direction)] == [("x", begin, 3)]
    assert shown.peak("operators", "live") == HOST_PLAN.peak


def test_modulo_scheduling() -> None:
    problem, plan, shown = solved("modulo_scheduling")
    events = shown.all("tiles")
    first = {event["name"]: event["ts"] for event in events if event["args"]["iteration"] == 0}
    assert first == {instruction.id: time for instruction, time in zip(problem.instructions, plan.times, strict=True)}
    assert len(shown.slices["tiles"]) == len(set(plan.tiles))
    # Once all iterations that overlap are on their way, every clock has as many instructions as its slot.
    clock = plan.makespan // plan.ii * plan.ii
    assert [event["ts"] for event in events].count(clock) == plan.slots.count(0)


@pytest.mark.parametrize("kind", sorted(WITHOUT_TIME))
def test_plans_without_times_are_refused_before_the_search(cli: Cli, kind: str, tmp_path: Path) -> None:
    name, target = OF_EACH_KIND[kind]
    options = ["--target", target] if target else []
    line = error_line(cli("solve", EXAMPLES / name, *options, "--emit", f"perfetto={tmp_path / 'x.json'}"))
    assert f"--emit perfetto: plans of the kind {kind.replace('_', ' ')} do not say when anything happens" in line
    assert not (tmp_path / "x.json").exists()


def test_the_kinds_with_traces_are_tested() -> None:
    tested = {name.removeprefix("test_") for name in globals()}
    assert {*OF_EACH_KIND} - WITHOUT_TIME <= tested


def test_commands_write_traces(cli: Cli, tmp_path: Path) -> None:
    buffers, plan, files = EXAMPLES / "buffers.csv", tmp_path / "plan.json", [tmp_path / "a.json", tmp_path / "b.json"]
    assert cli("solve", buffers, "-q", "-o", plan, "--emit", f"perfetto={files[0]}").code == 0
    assert cli("verify", buffers, plan, "--emit", f"perfetto={files[1]}").code == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    Shown(files[0].read_bytes())


def test_a_kind_without_a_presenter_is_refused() -> None:
    from stowplan.report.presenter import Presenter

    with pytest.raises(UsageError, match="plans of the kind unknown do not say when"):
        Presenter().trace(None, None)


def test_rows_hold_slices_that_do_not_overlap() -> None:
    slices = [Slice("a", 0, 4), Slice("b", 2, 6), Slice("c", 4, 5), Slice("d", 4, 4), Slice("e", 6, 7)]
    rows = in_rows(slices, "row")
    assert {name: [part.name for part in row] for name, row in rows.items()} == {"row 0": ["a", "d", "c", "e"], "row 1": ["b"]}


def test_negative_moments_are_shifted() -> None:
    problem, plan, _ = solved("packing")
    trace = Trace("moment", [Group("g", {"row": [Slice("a", -5, -3)]}, {"n": ((-5, -3), (7,))})])
    shown = Shown(encode(problem, plan, trace))
    assert [(event["ts"], event["dur"]) for event in shown.all("g")] == [(0, 2)]
    assert shown.counters["g", "n"] == [(0, 7), (2, 0)]
