"""Costs in time: by rates of a device, and measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stowplan.backends.torch import backend, measure_peak
from stowplan.backends.torch.devices import FILES, device
from stowplan.errors import InputError, StowplanError
from tests.backends.torch.training import Decoder, assert_same, gradients, torch, words


def trained(costs: Any, part: float = 0.6) -> Any:
    """The report of a small model within a part of what eager takes; its gradients, with dropout, are eager's."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, given = Decoder(2, dropout=0.1), words()
    eager = measure_peak(lambda: model(given).backward(), model, given)
    expected = gradients(model, lambda: model(given))
    made: Any = backend(int(part * eager), outside=0, time_limit=2.0, costs=costs)
    compiled = torch.compile(model, backend=made)
    found = gradients(model, lambda: compiled(given))
    assert_same(found, expected)
    return made.reports[0]


@pytest.mark.parametrize("costs", ["profile", "h100"])
def test_reports_say_added_seconds(costs: str) -> None:
    report = trained(costs)
    assert report.added_runs > 0
    assert report.added_seconds == pytest.approx(report.added_cost * 1e-12)
    assert 0 < report.added_seconds < 1
    assert (report.bound or 0) <= report.added_cost


def test_without_times_none_are_said() -> None:
    assert trained("flops").added_seconds is None


def prices(function: Any, *inputs: Any, by: Any) -> dict[str, int]:
    """Of the operators of a function's graph, by name."""
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(function, tracing_mode="fake")(*inputs).graph
    from stowplan.backends.torch import costs

    nodes = [node for node in graph.nodes if node.op == "call_function"]
    flops = [costs.flops(node) for node in nodes]
    found = by(nodes, flops, [False] * len(nodes))
    return {str(node.target): price for node, price in zip(nodes, found, strict=True)}


def test_a_roofline_is_the_larger_of_arithmetic_and_bytes() -> None:
    from stowplan.backends.torch.seconds import RateCosts

    size = 4096
    one = torch.empty(size, size, dtype=torch.bfloat16, device="meta")
    found = prices(lambda a: torch.tanh(a @ a), one, by=RateCosts(device("h100")))
    assert found["aten.mm.default"] == pytest.approx(2 * size**3 / 989.5e12 * 1e12, rel=1e-6)
    assert found["aten.tanh.default"] == pytest.approx(2 * 2 * size**2 / 3350e9 * 1e12, rel=1e-6)


def test_measured_prices_grow_with_what_is_computed() -> None:
    from stowplan.backends.torch.seconds import MeasuredCosts

    measured = MeasuredCosts(10.0)
    small = prices(lambda a: torch.tanh(a @ a), torch.randn(32, 32), by=measured)["aten.mm.default"]
    large = prices(lambda a: a @ a, torch.randn(2048, 2048), by=measured)["aten.mm.default"]
    assert 0 < 10 * small < large


def test_indices_expanded_inputs_and_what_cannot_run_have_prices() -> None:
    from stowplan.backends.torch.seconds import MeasuredCosts

    def function(table: Any, rows: Any) -> Any:
        return (table[rows] + torch.ones(1, 1).expand(4, 8)).sum()

    found = prices(function, torch.randn(9, 8), torch.tensor([1, 8, 2, 5]), by=MeasuredCosts(10.0))
    assert all(price > 0 for price in found.values())
    assert all(price > 0 for price in prices(lambda a: a @ a, torch.randn(8, 8), by=MeasuredCosts(0.0)).values())


@pytest.mark.parametrize("name", FILES.names())
def test_files_of_devices_are_read(name: str) -> None:
    found = device(name)
    assert found.name == name
    assert found.compute["bfloat16"] > found.compute["float32"] >= found.compute["float64"]


BAD = {
    "no rates": 'bandwidth = "1 GB/s"\n[compute]\n',
    "no unit": 'bandwidth = "1"\n[compute]\nfloat32 = "1 Tflop/s"\n',
    "a bandwidth of 0": 'bandwidth = "0 GB/s"\n[compute]\nfloat32 = "1 Tflop/s"\n',
    "unknown": 'bandwidth = "1 GB/s"\ncolour = "red"\n[compute]\nfloat32 = "1 Tflop/s"\n',
}


@pytest.mark.parametrize("what", BAD)
def test_bad_files_are_one_line(what: str, tmp_path: Path) -> None:
    path = tmp_path / "device.toml"
    head = 'format = "stowplan.torch-device"\nversion = 1\nname = "x"\ndescription = ""\n'
    path.write_text(head + BAD[what])
    with pytest.raises(InputError, match=r"device\.toml") as caught:
        backend(1, costs=path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("costs", ["cheap", 1, None, "missing.toml"])
def test_bad_costs_say_so(costs: Any) -> None:
    with pytest.raises(StowplanError, match=r"costs|missing.toml"):
        backend(1, costs=costs)
