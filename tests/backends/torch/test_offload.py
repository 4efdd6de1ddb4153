"""Values kept, computed again, or sent to the host: limits of two pools, and eager's gradients."""

from __future__ import annotations

from typing import Any

import pytest

from stowplan.backends.torch import MemoryLimitError, backend, measure_peaks, memory_limit
from stowplan.errors import UsageError
from tests.backends.torch.training import Decoder, assert_same, gradients, nn, torch, words

HOST = {"host": "64 MiB", "host_bandwidth": "4 TB/s"}


class Loss(nn.Module):
    """A model with its loss."""

    def __init__(self, *layers: Any):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return self.layers(x).square().mean()


def chain() -> tuple[Any, Any]:
    layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64, bias=False), nn.Tanh())]
    return Loss(*layers), torch.randn(2048, 64)


def convolutions() -> tuple[Any, Any]:
    layers = [layer for _ in range(5) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU())]
    return Loss(*layers), torch.randn(4, 8, 24, 24)


def transformer() -> tuple[Any, Any]:
    return Decoder(4, dropout=0.1), words()


MODELS = {"chain": chain, "transformer": transformer, "convolutions": convolutions}


def step(model: Any, function: Any) -> Any:
    model.zero_grad(set_to_none=True)
    return measure_peaks(lambda: function().backward(), model)


def trained(name: str, part: float, costs: str = "h100", **options: Any) -> tuple[Any, Any, int]:
    """The report, the peaks of a step and the limit, a part of what eager takes; gradients are eager's to the bit."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, given = MODELS[name]()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    eager = measure_peaks(lambda: model(given).backward(), model, given).device
    model.load_state_dict(state)
    expected = gradients(model, lambda: model(given))
    limit = int(part * eager)
    made: Any = backend(limit, outside=0, time_limit=4.0, costs=costs, **options)
    compiled = torch.compile(model, backend=made)
    model.load_state_dict(state)
    assert_same(gradients(model, lambda: compiled(given)), expected)
    peaks = measure_peaks(lambda: compiled(given).backward(), model, given)
    (report,) = made.reports
    return report, peaks, limit


@pytest.mark.parametrize("name", MODELS)
def test_two_pools_stay_within_their_limits(name: str) -> None:
    alone, _, _ = trained(name, 0.65)
    report, peaks, limit = trained(name, 0.65, **HOST)
    assert peaks.device <= report.peak <= limit
    assert 0 < peaks.host <= report.host_bytes <= 64 << 20
    assert report.added_cost < alone.added_cost
    assert 0 <= report.stalled_seconds <= report.added_seconds
