"""Problems of dsa-solver: what becomes of pools, reserved bytes, separations and pins; solutions; damaged files."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stowplan
from stowplan.cli import main
from stowplan.errors import InputError
from stowplan.frontends.dsa import solution
from stowplan.models.packing import cpsat
from stowplan.models.packing.plan import make_plan
from stowplan.models.packing.problem import Problem
from stowplan.models.packing.verify import verify
from tests.paths import DATA

SMALL = DATA / "readers" / "small.dsa.json"


def read_changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> Problem:
    """The problem of the small file after a change of its contents."""
    document = json.loads(SMALL.read_text())
    change(document)
    path = folder / "changed.json"
    path.write_text(json.dumps(document))
    problem: Problem = stowplan.read(path)
    return problem


def test_pools_separations_and_pins_become_buffers_and_lives() -> None:
    problem = stowplan.read(SMALL)
    assert (problem.name, problem.capacity) == ("small café", 256)
    numbers = {buffer.id: buffer for buffer in problem.buffers}
    assert list(numbers) == ["a", "b", "c", "d", "x", "y", "z", "reserved Vec 0", "reserved Acc 128"]
    assert numbers["d"].offset == 64
    assert numbers["c"].gaps == ((2, 5),)
    assert (numbers["reserved Acc 128"].offset, numbers["reserved Acc 128"].size) == (128, 128)
    # Costs of a pair are added up; a pair in two pools never shares bytes.
    costs = {(each.first, each.second): each.cost for each in problem.penalties}
    assert costs == {("a", "b"): 3, ("a", "d"): 4, ("x", "z"): 1, ("y", "z"): 1}
    together = {
        (one.id, other.id)
        for one, other in itertools.combinations(problem.buffers[:7], 2)
        if any(low < end and start < high for low, high in one.pieces for start, end in other.pieces)
    }
    # a and c and so on by their lives; x and y because they are separated. None of two pools.
    assert together == {("a", "c"), ("b", "c"), ("c", "d"), ("x", "y")}


def test_solutions_name_the_problem_by_its_fingerprint() -> None:
    problem = stowplan.read(SMALL)
    plan = cpsat.solve(problem, time_limit=60).plan
    assert plan is not None
    assert (plan.objective, verify(problem, plan).ok) == (5, True)
    document = json.loads(solution(SMALL, plan))
    # The fingerprint that dsa-solver itself computes for this file.
    assert document["problem_fingerprint"] == "ca1f5dd20f281a17"
    assert [each["buffer"] for each in document["placements"]] == [1, 2, 4, 5, 6, 7, 9]
    assert {each["pool"] for each in document["placements"] if each["buffer"] in (5, 6, 9)} == {3}
    other = make_plan(stowplan.read(DATA / "readers" / "buffers.csv"), [0, 0, 0])
    with pytest.raises(InputError, match="found a plan for another problem"):
        solution(SMALL, other)


def test_the_command_writes_a_solution(tmp_path: Path) -> None:
    out = tmp_path / "solution.json"
    with pytest.raises(SystemExit) as ended:
        main(["solve", str(SMALL), "--time-limit", "20", "-q", "--emit", f"dsa={out}"])
    assert ended.value.code == 0
    assert json.loads(out.read_text())["instance"] == "small café"


def test_other_inputs_have_no_such_solution(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "solution.json"
    with pytest.raises(SystemExit) as ended:
        main(["solve", str(DATA / "readers" / "buffers.csv"), "--emit", f"dsa={out}"])
    assert ended.value.code == 2
    assert "expected a problem of dsa-solver" in capsys.readouterr().err
    assert not out.exists()


def test_peaks_as_the_objective_leave_any_plan_that_fits(tmp_path: Path) -> None:
    def peaks(document: dict[str, Any]) -> None:
        document["problem"]["objective"]["terms"] = ["total_peak", "max_peak"]

    problem = read_changed(tmp_path, peaks)
    assert not problem.penalties
    assert problem.capacity == 256


def _constraint(name: str, rule: dict[str, Any]) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["problem"]["constraints"][name].append(rule)


def _buffer(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["problem"]["buffers"][0].update(values)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda document: document.update(schema_version=2), "schema_version"),
        (lambda document: document.pop("problem"), "problem"),
        (_constraint("colocations", {"first": 4, "second": 1}), "colocations: found 1 pairs, expected none"),
        (_constraint("temporal_exclusions", {"first": 4, "second": 2}), "temporal_exclusions: found 1 pairs"),
        (_constraint("separations", {"first": 4, "second": 77}), r"separations\[2\]: found buffer 77, expected the id"),
        (
            _constraint("pinned_allocations", {"buffer": 7, "pool": 0, "offset": 96, "exclusive_for_all_time": False}),
            r"pinned_allocations\[1\]: found offset 96 of buffer 7, expected 64, as another one states",
        ),
        (_buffer(allowed_pools=[0, 3]), r"found allowed_pools \[0, 3\], expected one of the pools"),
        (_buffer(allowed_pools=[5]), "expected one of the pools"),
        (_buffer(live_intervals=[{"lower": 3, "upper": 3}]), "live_intervals that are empty"),
        (_buffer(live_intervals=[]), "live_intervals that are empty"),
        (_buffer(id=1), "found the id '1' twice"),
        (_buffer(name="b"), "found the name 'b' twice"),
        (_buffer(size=-1), "found size -1"),
        (_buffer(size="64"), "size"),
        (_buffer(alignment=0), "found alignment 0"),
        (_buffer(extra=1), "extra"),
        (_buffer(size=1 << 63), "found size"),
        (lambda document: document["problem"]["pools"][0].update(capacity=None), "some without a capacity"),
        (lambda document: document["problem"]["pools"][0]["reserved_ranges"].append({"begin": 8, "end": 8}), "is empty"),
        (lambda document: document["problem"]["objective"].update(terms=["reuse_cost"]), "terms: found"),
        (lambda document: document["problem"]["cost_model"]["reuse_penalties"][0].update(cost=-2), "found cost"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(
    change: Callable[[dict[str, Any]], object], text: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=text) as caught:
        read_changed(tmp_path, change)
    assert "\n" not in str(caught.value)
    assert "changed.json" in str(caught.value)
