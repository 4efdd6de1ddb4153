"""What is handed over where nothing is planned: gradients are eager's to the bit, whatever a module does to its buffers."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest

from stowplan.backends.fallback import UnsupportedError
from stowplan.backends.torch import PlanningWarning, backend
from tests.backends.torch.training import functional, nn, torch

WIDTH = 16


class Buffers(nn.Module):
    """Two layers and a buffer, with what a family of modules does to it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("state", torch.randn(WIDTH, WIDTH))


class MovingAverage(Buffers):
    def forward(self, x: Any) -> Any:
        gate = self.state.sin().exp()
        hidden = self.one(x) * gate
        out = torch.relu(self.two(hidden)) * self.state.cos().tanh()
        self.state.mul_(0.5).add_(out.detach())
        return (out * out * gate).mean()


class RunningStatistics(Buffers):
    """As a batch norm that normalizes by what it knew before."""

    def forward(self, x: Any) -> Any:
        scale = (self.state.square().mean(0) + 0.1).rsqrt()
        hidden = self.one(x) * scale
        with torch.no_grad():
            self.state.lerp_(hidden, 0.1)
        return (self.two(hidden.tanh()) * scale).square().mean()


class Counter(Buffers):
    def forward(self, x: Any) -> Any:
        self.state.add_(1)
        warm = (-self.state / 10).exp()
        out = self.two(self.one(x).tanh() * warm) * warm.cos()
        self.state.add_(1)
        return out.square().mean()


class Recurrent(Buffers):
    def forward(self, x: Any) -> Any:
        before = self.state.clone()
        hidden = torch.tanh(self.one(x) + self.two(before).sin() * before.exp())
        self.state.copy_(hidden.detach())
        return hidden.square().mean()


class InPart(Buffers):
    def forward(self, x: Any) -> Any:
        mask = torch.sigmoid(self.state[:4].t().exp()).t().repeat(4, 1)
        out = self.two(self.one(x).tanh() * mask) * mask
        self.state[:4].zero_()
        return out.square().mean()


class Dropout(Buffers):
    def forward(self, x: Any) -> Any:
        hidden = functional.dropout(self.one(x).tanh(), 0.4)
        return (self.two(hidden) * torch.rand_like(hidden).exp().sin()).square().mean()


class DropoutAndBuffer(Buffers):
    def forward(self, x: Any) -> Any:
        gate = functional.dropout(self.state.sin().exp(), 0.3)
        out = functional.dropout(self.one(x).tanh() * gate, 0.3)
        self.state.mul_(0.9)
        return (self.two(out) * gate.cos()).square().mean()


class Norm(Buffers):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Any) -> Any:
        return self.two(self.norm(self.one(x)).sin().exp()).square().mean()


class Plain(Buffers):
    def forward(self, x: Any) -> Any:
        return self.two(self.one(x).sin().exp() * self.state.cos()).square().mean()


class Regions(MovingAverage):
    """A region that is to be recomputed writes over what it reads."""

    def forward(self, x: Any) -> Any:
        from torch.utils.checkpoint import checkpoint

        hidden = checkpoint(lambda given: self.one(given).sin().exp(), x, use_reentrant=False)
        return super().forward(hidden)


FAMILY = [MovingAverage, RunningStatistics, Counter, Recurrent, InPart, Dropout, DropoutAndBuffer, Norm, Plain, Regions]


def functorch() -> Any:
    from torch._functorch import config

    return config


def trained(model: Any, run: Any) -> list[Any]:
    """Gradients of two steps that add up, and buffers behind them."""
    torch.manual_seed(5)
    for _ in range(2):
        run(torch.linspace(-1, 1, WIDTH * WIDTH).reshape(WIDTH, WIDTH)).backward()
    return [*(each.grad for each in model.parameters()), *model.buffers()]


def safe_modules(kind: Any, **options: Any) -> list[str]:
    """What is said; results are eager's to the bit."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = kind()
    expected = copy.deepcopy(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = torch.compile(model, backend=backend(1, strict=False, time_limit=0.3, **options))
        found = trained(model, run)
    for one, other in zip(found, trained(expected, expected), strict=True):
        assert torch.equal(one, other)
    return [str(each.message) for each in caught if each.category is PlanningWarning and "a step took" not in str(each.message)]


@pytest.mark.slow
@pytest.mark.parametrize("budget", [1.0, 0.3, 0.0])
@pytest.mark.parametrize("kind", FAMILY)
def test_where_the_limit_cannot_be_met(kind: Any, budget: float) -> None:
    with functorch().patch(activation_memory_budget=budget):
        (said,) = safe_modules(kind)
    assert said.startswith("the least peak found is" if kind is not Regions else "what is to be recomputed")


@pytest.mark.parametrize(
    ("kind", "instead"),
    [
        (MovingAverage, "nothing is recomputed"),
        (DropoutAndBuffer, "nothing is recomputed"),
        (Plain, "torch's own plan is kept"),
        (Regions, "what is to be recomputed may read what is written over meanwhile: the graph runs as eager"),
    ],
)
def test_what_is_said(kind: Any, instead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: object, **kwargs: object) -> None:
        raise UnsupportedError("found an effect")

    monkeypatch.setattr("stowplan.backends.torch.partition.read", failing)
    with functorch().patch(activation_memory_budget=0.0):
        (said,) = safe_modules(kind)
    assert said.endswith(instead)


def test_an_input_that_is_written_over_behind_the_graph() -> None:
    """One that needs a gradient is written over after the forward pass: what reads it is not recomputed from it."""

    def run(weight: Any, x: Any) -> Any:
        out = (weight * x.exp().sin().tanh()).sum()
        x.add_(1)
        return out

    def gradients(function: Any) -> list[Any]:
        weight, leaf = (torch.linspace(0, 1, 64, requires_grad=True) for _ in range(2))
        function(weight, leaf * 2).backward()
        return [weight.grad, leaf.grad]

    for limit in (2200, 2000, 1):
        torch._dynamo.reset()
        made = torch.compile(run, backend=backend(limit, strict=False, time_limit=0.5))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PlanningWarning)
            found = gradients(made)
        for one, other in zip(found, gradients(run), strict=True):
            assert torch.equal(one, other)
