"""The planner on hand-made tensors: offsets that hold, never more than greedy's, and greedy's where nothing else will do."""

from __future__ import annotations

import itertools
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from stowplan.backends.executorch import arenas, check, planning
from stowplan.backends.executorch.planning import MemoryPlanningAlgorithm
from stowplan.backends.fallback import PlanningWarning
from stowplan.errors import UsageError
from tests.backends.executorch.specs import Spec, alone, graph, random_specs, stack
from tests.patience import HANG


def algorithm(greedy: Any = stack) -> MemoryPlanningAlgorithm:
    return MemoryPlanningAlgorithm(HANG, greedy=greedy)


def bytes_of(spec: Spec, found: Any) -> range:
    return range(found.mem_offset, found.mem_offset + spec.allocated_memory)


def is_inside(one: Spec, other: Spec) -> bool:
    while one.storage_base is not None:
        one = one.storage_base
        if one is other:
            return True
    return False


def assert_holds(specs: list[Spec], result: Any, reserved: list[int], padding: int) -> None:
    """Written apart from the package's own check."""
    for spec in specs:
        found = result.spec_dict[spec]
        assert found.mem_offset % 16 == 0
        assert found.mem_offset >= (reserved[found.mem_id] if found.mem_id < len(reserved) else 0)
        assert found.mem_offset + spec.allocated_memory <= result.bufsizes[found.mem_id] - padding
        if spec.storage_base is not None:
            base = result.spec_dict[spec.storage_base]
            assert (found.mem_id, found.mem_offset) == (base.mem_id, base.mem_offset + spec.storage_base_offset)
    for one, other in itertools.combinations(specs, 2):
        first, second = result.spec_dict[one], result.spec_dict[other]
        if first.mem_id != second.mem_id or not set(bytes_of(one, first)) & set(bytes_of(other, second)):
            continue
        assert first.mem_obj_id == second.mem_obj_id
        ends_before = one.lifetime[1] < other.lifetime[0] or other.lifetime[1] < one.lifetime[0]
        assert ends_before or is_inside(one, other) or is_inside(other, one)


def extend(specs: list[Spec]) -> None:
    """As the framework does: what others lie inside of lives as long as they do."""
    for spec in specs:
        base = spec.storage_base
        while base is not None:
            base.lifetime = [min(base.lifetime[0], spec.lifetime[0]), max(base.lifetime[1], spec.lifetime[1])]
            base = base.storage_base


def test_random_tensors_keep_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without a process for each of so many: what first fit finds.
    monkeypatch.setattr(planning, "solve_with", lambda *given: SimpleNamespace(plan=None, bound=None))
    improved = 0
    for seed in range(300):
        specs = random_specs(seed, arenas=1 + seed % 3)
        extend(specs)
        reserved, padding = ([0, 48, 16] if seed % 2 else []), 64 * (seed % 5 == 0)
        stacked = stack(16, specs, graph(*reserved), None, padding)
        # Siblings inside one tensor that meet are refused: then the plan stays what it was.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PlanningWarning)
            result = algorithm()(16, specs, graph(*reserved), None, padding)
        assert len(result.bufsizes) == len(stacked.bufsizes)
        assert all(ours <= theirs for ours, theirs in zip(result.bufsizes, stacked.bufsizes, strict=True))
        improved += sum(result.bufsizes) < sum(stacked.bufsizes)
        if sum(result.bufsizes) < sum(stacked.bufsizes):
            assert_holds(specs, result, reserved, padding)
    assert improved > 150


@pytest.mark.slow
def test_a_search_finds_what_first_fit_does_not() -> None:
    # By size 0 takes the bottom, 1 and 2 each a place above it; the least height has 0 in the middle.
    lives = [(40, 0, 3), (30, 2, 6), (30, 5, 9), (20, 3, 5), (50, 7, 9), (20, 0, 2)]
    specs = [Spec(16 * size, first, last) for size, first, last in lives]
    planner = algorithm()
    result = planner(16, specs, graph(), None, 0)
    assert_holds(specs, result, [], 0)
    (report,) = planner.reports
    assert report.size == result.bufsizes[1] == report.bound
    assert report.is_proven


def test_greedy_at_the_load_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any, **options: Any) -> None:
        raise AssertionError("nothing is to be planned")

    monkeypatch.setattr(planning, "solve_with", never)
    monkeypatch.setattr(planning, "quick_plan", never)
    specs = [Spec(64, 0, 3), Spec(32, 1, 2)]
    planner = algorithm()
    result = planner(16, specs, graph(0, 32), None, 64)
    assert result.bufsizes == [0, 32 + 96 + 64]
    assert planner.reports[0].source == "greedy"
    assert planner.reports[0].is_proven


def test_lives_are_inclusive() -> None:
    specs = [Spec(64, 0, 3), Spec(64, 3, 5), Spec(64, 6, 7)]
    result = algorithm()(16, specs, graph(), None, 0)
    assert result.bufsizes == [0, 128]


def test_reserved_bytes_that_are_not_aligned() -> None:
    specs = [Spec(64, 0, 1), Spec(64, 2, 3)]
    result = algorithm()(32, specs, graph(0, 40), None, 0)
    assert result.bufsizes == [0, 64 + 64]
    assert all(result.spec_dict[spec].mem_offset == 64 for spec in specs)


def test_arenas_are_planned_one_by_one() -> None:
    specs = [Spec(64, 0, 1), Spec(64, 2, 3), Spec(32, 0, 1, mem_id=3), Spec(32, 2, 3, mem_id=3)]
    planner = algorithm()
    result = planner(16, specs, graph(), None, 0)
    assert result.bufsizes == [0, 64, 0, 32]
    assert [report.mem_id for report in planner.reports] == [1, 3]


def test_no_tensors() -> None:
    assert algorithm()(16, [], graph(), None, 0).bufsizes == [0, 0]


def _inside_itself() -> list[Spec]:
    spec = Spec(64, 0, 1)
    spec.storage_base = spec
    return [spec]


def _inside_a_stranger() -> list[Spec]:
    spec = Spec(64, 0, 1)
    spec.storage_base = Spec(64, 0, 1)
    return [spec]


def _beyond_its_base() -> list[Spec]:
    base, spec = Spec(64, 0, 1), Spec(64, 0, 1)
    spec.storage_base, spec.storage_base_offset = base, 16
    return [base, spec]


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ([Spec(64, None, None)], "lifetime"),
        ([Spec(64, 3, 1)], "lifetime"),
        (_inside_itself(), "inside its own bytes"),
        (_inside_a_stranger(), "not planned"),
        (_beyond_its_base(), "inside it at a multiple"),
        ([Spec(64, 0, 1, mem_id=0)], "arena 0"),
    ],
)
def test_what_is_not_supported_keeps_greedys_plan(specs: list[Spec], words: str) -> None:
    given = planning_result(specs)
    with pytest.warns(PlanningWarning, match=words) as told:
        result = algorithm(lambda *args: given)(16, specs, graph(), None, 0)
    assert result is given
    assert len(told) == 1
    assert "executorch's own" in str(told[0].message)


def planning_result(specs: list[Spec]) -> Any:
    flat = [Spec(64, 0, 1) for _ in specs]
    found = stack(16, flat, graph())
    found.spec_dict = dict(zip(specs, found.spec_dict.values(), strict=True))
    return found


def test_a_plan_that_fails_verification_is_not_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [Spec(64, 0, 1), Spec(64, 2, 3)]
    monkeypatch.setattr(check, "faults", lambda *args: ["tensors 0 and 1 share bytes while both live"])
    with pytest.warns(PlanningWarning, match="failed verification"):
        result = algorithm()(16, specs, graph(), None, 0)
    assert result.bufsizes == [0, 128]
    assert sorted(found.mem_offset for found in result.spec_dict.values()) == [0, 64]


def test_every_mutation_is_found() -> None:
    for seed in range(60):
        specs = random_specs(seed)
        extend(specs)
        placed = {id(spec): (found.mem_id, found.mem_offset) for spec, found in stack(16, specs, graph()).spec_dict.items()}
        sizes = stack(16, specs, graph()).bufsizes
        for spec in specs:
            mem_id, at = placed[id(spec)]
            for wrong in ((mem_id, at + 8), (mem_id, sizes[mem_id]), (mem_id + 1, at), (0, at), (mem_id, -16)):
                if spec.allocated_memory or wrong != (mem_id, sizes[mem_id]):
                    assert check.faults(alone(specs), {**placed, id(spec): wrong}, sizes, []), wrong
        del placed[id(specs[0])]
        assert check.faults(alone(specs), placed, sizes, []) == ["1 tensors have no place"]


def test_check_finds_shared_bytes() -> None:
    specs = [Spec(64, 0, 2), Spec(64, 2, 3), Spec(64, 3, 3)]
    at = {id(spec): (1, offset) for spec, offset in zip(specs, (0, 48, 112), strict=True)}
    assert check.faults(alone(specs), at, [0, 176], []) == ["tensors 0 and 1 share bytes while both live"]
    assert check.faults(alone(specs, 64), at, [0, 176], [])
    assert check.faults(alone(specs), at, [0, 176], [0, 16])
    at[id(specs[1])] = 1, 64
    at[id(specs[2])] = 1, 0
    assert not check.faults(alone(specs), at, [0, 176], [])


def test_objects_of_memory_are_runs_of_bytes() -> None:
    specs = [Spec(64, 0, 1), Spec(64, 2, 3), Spec(64, 0, 3), Spec(0, 0, 3)]
    at = {id(spec): (1, offset) for spec, offset in zip(specs, (0, 48, 112, 0), strict=True)}
    found = arenas.places(specs, at)
    assert [found[id(spec)].mem_obj_id for spec in specs[:3]] == [0, 0, 1]


def test_another_version_keeps_greedys_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning.importlib.metadata, "version", lambda name: "1.9.0")
    monkeypatch.setattr(planning, "_installed_greedy", lambda: stack)
    specs = [Spec(64, 0, 1), Spec(64, 2, 3)]
    with pytest.warns(PlanningWarning, match=r"found executorch 1\.9\.0, expected 1\.5: the plan is executorch's own"):
        result = MemoryPlanningAlgorithm()(16, specs, graph(), None, 0)
    assert result.bufsizes == [0, 128]


def test_arguments_are_checked_at_once() -> None:
    with pytest.raises(UsageError, match="time limit"):
        MemoryPlanningAlgorithm(0)
    with pytest.raises(UsageError, match="deterministic"):
        MemoryPlanningAlgorithm(deterministic="no")  # type: ignore[arg-type]
    assert MemoryPlanningAlgorithm(5, deterministic=True, seed=3).__name__ == "stowplan"
