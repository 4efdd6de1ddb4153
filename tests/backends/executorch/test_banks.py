"""The planner for target memory maps on hand-made tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stowplan.backends.executorch import planning
from stowplan.backends.executorch.banks import BankedPlanningAlgorithm
from stowplan.backends.fallback import PlanningWarning
from stowplan.errors import InputError, UsageError
from tests.backends.executorch.specs import Placed, Result, Spec, graph
from tests.patience import HANG


def target(*banks: tuple[str, int, int], alignment: int | None = None) -> Any:
    return SimpleNamespace(
        banks=[SimpleNamespace(name=name, size=size, mem_id=mem_id, alignment=alignment) for name, size, mem_id in banks]
    )


def slow_only(mem_id: int) -> Any:
    """A planner that puts everything that is not pinned into one bank, each tensor at bytes of its own."""

    def stock(alignment: int, specs: list[Spec], *others: Any) -> Result:
        result, top = Result({}, [0] * (mem_id + 1)), 0
        for spec in specs:
            spec.realign(alignment)
            result.spec_dict[spec] = Placed(spec.mem_id or mem_id, 0, top)
            top += spec.allocated_memory
        return result

    return stock


def refuses(*arguments: Any) -> Any:
    raise RuntimeError("No declared bank can hold a 64-byte buffer")


def planner(memory: Any, stock: Any, uses: dict[Spec, int]) -> BankedPlanningAlgorithm:
    def count(graph_module: Any, specs: Any) -> dict[int, int]:
        return {id(spec): number for spec, number in uses.items()}

    return BankedPlanningAlgorithm(memory, time_limit=HANG, stock=stock, count_uses=count)


def test_what_is_used_most_goes_into_the_fast_bank() -> None:
    large, small, other = Spec(128, 0, 9), Spec(64, 0, 5), Spec(64, 6, 9)
    algorithm = planner(target(("fast", 128, 1), ("slow", 4096, 2)), slow_only(2), {large: 2, small: 9, other: 9})
    result = algorithm(16, [large, small, other], graph(0, 16), None, 32)
    assert [result.spec_dict[spec].mem_id for spec in (large, small, other)] == [2, 1, 1]
    assert result.spec_dict[small].mem_offset == result.spec_dict[other].mem_offset == 16
    assert result.bufsizes == [0, 16 + 64 + 32, 128 + 32]
    (report,) = algorithm.reports
    assert report.is_proven
    assert report.stock == 4 * (256 + 2 * 9 * 64)
    assert report.traffic == {"fast": 2 * 9 * 64, "slow": 256}
    assert report.stock_traffic == {"fast": 0, "slow": 256 + 2 * 9 * 64}


def test_pins_and_arenas_that_are_not_declared() -> None:
    pinned, strange, free = Spec(64, 0, 3, mem_id=2), Spec(64, 0, 3, mem_id=4), Spec(64, 0, 3)
    algorithm = planner(target(("fast", 64, 1), ("slow", 256, 2)), slow_only(2), {pinned: 99, strange: 99, free: 1})
    result = algorithm(16, [pinned, strange, free], graph())
    assert [result.spec_dict[spec].mem_id for spec in (pinned, strange, free)] == [2, 4, 1]
    assert result.bufsizes == [0, 64, 64, 0, 64]


def test_a_bank_of_a_coarser_alignment() -> None:
    one, two = Spec(40, 0, 3), Spec(40, 0, 3)
    algorithm = planner(target(("fast", 64, 1), ("slow", 256, 2), alignment=64), slow_only(2), {one: 1, two: 2})
    result = algorithm(16, [one, two], graph())
    assert [result.spec_dict[spec].mem_id for spec in (one, two)] == [2, 1]
    assert one.alignment == two.alignment == 64


def test_what_lies_inside_another_goes_with_it() -> None:
    base, inner = Spec(64, 0, 3), Spec(16, 2, 3)
    inner.storage_base, inner.storage_base_offset = base, 32
    algorithm = planner(target(("fast", 64, 1), ("slow", 256, 2)), slow_only(2), {base: 1, inner: 5})
    result = algorithm(16, [base, inner], graph())
    found = result.spec_dict[inner]
    assert (found.mem_id, found.mem_offset) == (1, result.spec_dict[base].mem_offset + 32)


def test_a_map_that_nothing_fits_is_one_line() -> None:
    specs = [Spec(64, 0, 3), Spec(64, 1, 2)]
    algorithm = planner(target(("fast", 64, 1), ("slow", 48, 2)), refuses, dict.fromkeys(specs, 1))
    with pytest.raises(InputError, match=r"the banks do not hold the graph: .*live at once.*128 bytes.*have 112") as told:
        algorithm(16, specs, graph())
    assert "\n" not in str(told.value)
    assert "No declared bank" in str(told.value)


def test_stock_is_kept_where_the_graph_is_not_supported() -> None:
    spec = Spec(64, 0, 3, device="CUDA")
    algorithm = planner(target(("fast", 64, 1), ("slow", 48, 2)), slow_only(2), {spec: 1})
    with pytest.warns(PlanningWarning, match="found tensors on CUDA"):
        result = algorithm(16, [spec], graph())
    assert result.spec_dict[spec].mem_id == 2
    algorithm.stock = refuses
    with pytest.raises(RuntimeError, match="No declared bank"):
        algorithm(16, [spec], graph())


def test_another_version_keeps_stocks_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning.importlib.metadata, "version", lambda name: "2.0.1")
    monkeypatch.setattr("stowplan.backends.executorch.banks._stock", lambda target: slow_only(2))
    algorithm = BankedPlanningAlgorithm(target(("fast", 64, 1), ("slow", 48, 2)))
    spec = Spec(16, 0, 3)
    with pytest.warns(PlanningWarning, match=r"found executorch 2\.0\.1"):
        assert algorithm(16, [spec], graph()).spec_dict[spec].mem_id == 2


def test_costs_are_checked() -> None:
    memory = target(("fast", 64, 1), ("slow", 48, 2))
    assert BankedPlanningAlgorithm(memory).costs == (1, 4)
    assert BankedPlanningAlgorithm(memory, {"slow": 7, "fast": 2}).costs == (2, 7)
    with pytest.raises(UsageError, match="one for each bank: fast, slow"):
        BankedPlanningAlgorithm(memory, {"slow": 7})
    with pytest.raises(UsageError, match=r"the cost 0\.5 of fast"):
        BankedPlanningAlgorithm(memory, {"slow": 7, "fast": 0.5})  # type: ignore[dict-item]
