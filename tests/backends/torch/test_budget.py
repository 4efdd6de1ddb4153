"""The knapsack solver for PyTorch's own partitioner: lower budgets have lower peaks, and gradients stay what they are."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._functorch import config  # noqa: E402

import stowplan.backends.torch as planned  # noqa: E402
from stowplan.backends.fallback import PlanningWarning  # noqa: E402
from stowplan.backends.torch import budget, stock  # noqa: E402
from stowplan.backends.torch.reader import read, sequence_of  # noqa: E402
from stowplan.errors import UsageError  # noqa: E402
from stowplan.models.rematerialization.structure import build  # noqa: E402

BUDGETS = (0.9, 0.5, 0.3, 0.15, 0.05)


class Block(nn.Module):
    """A residual layer whose inner values are larger than what it passes on."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 96), nn.Linear(96, 16)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


def model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(5)))


def step(network: Any) -> Any:
    network(torch.linspace(-1, 1, 64 * 16).view(64, 16)).square().mean().backward()
    return [parameter.grad for parameter in network.parameters()]


@cache
def peaks(solver: Any) -> list[int]:
    """Peak of the plan that PyTorch's partitioner makes with a solver, at each budget."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop

    found = []

    def partition(module: Any, joint_inputs: Any, **kwargs: Any) -> Any:
        reading = read(module.graph, kwargs["num_fwd_outputs"])
        structure = build(reading.problem)
        for share in BUDGETS:
            with config.patch(activation_memory_budget_solver=solver):
                halves = stock.partition(module, joint_inputs, kwargs, share)
            sequence = sequence_of(reading, [half.graph for half in halves])
            assert sequence is not None
            found.append(structure.made(sequence).peak)
        return halves

    torch._dynamo.reset()
    step(torch.compile(model(), backend=aot_autograd(fw_compiler=boxed_nop, partition_fn=partition)))
    return found


def test_the_peak_falls_with_the_budget() -> None:
    own, ours = peaks("dp"), peaks(planned.knapsack)
    assert all(low <= high for high, low in pairwise(ours))
    assert min(ours) < ours[0]
    # The control: PyTorch's own solver looks at the sum of the saved bytes, and has a higher peak at its lowest budget.
    assert any(low > high for high, low in pairwise(own))
    assert ours[-1] < own[-1]


def test_gradients_are_those_without_recomputation() -> None:
    gradients = []
    for share in (1.0, 0.5, 0.1):
        torch._dynamo.reset()
        with config.patch(activation_memory_budget=share, activation_memory_budget_solver=planned.knapsack):
            gradients.append(step(torch.compile(model(), backend="aot_eager_decomp_partition")))
    for recomputed in gradients[1:]:
        assert all(torch.equal(one, other) for one, other in zip(recomputed, gradients[0], strict=True))
    for one, other in zip(gradients[0], step(model()), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def test_a_limit_in_bytes_takes_the_place_of_the_budget() -> None:
    # At the highest budget PyTorch takes a plan without asking a solver.
    free, tight = peaks(planned.Knapsack("1 GiB"))[1:], peaks(planned.knapsack)[1:]
    assert len({*free}) == 1
    assert free[0] >= max(tight)
    limit = (max(free) + min(tight)) // 2
    assert all(peak <= limit for peak in peaks(planned.Knapsack(limit))[1:])


def test_a_limit_that_nothing_meets_is_a_warning() -> None:
    least = min(peaks(planned.knapsack))
    with pytest.warns(PlanningWarning, match="the limit is 1: the plan of that peak is taken"):
        assert peaks(planned.Knapsack(1))[-1] == least


def test_what_cannot_be_read_is_left_to_the_solver_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    own = peaks("dp")
    monkeypatch.setattr(budget, "_choices", lambda *_: 1 / 0)
    with pytest.warns(PlanningWarning, match="'dp' is used"):
        assert peaks.__wrapped__(planned.knapsack) == own


def test_caches_know_it_by_version_and_limit() -> None:
    assert planned.knapsack.uuid() == planned.Knapsack().uuid() != planned.Knapsack(5).uuid()


@pytest.mark.parametrize("memory", [0, -1, "much", 1.5])
def test_a_limit_that_is_none(memory: Any) -> None:
    with pytest.raises(UsageError, match="memory limit"):
        planned.Knapsack(memory)


@pytest.mark.parametrize(("described", "expected"), [((False, None, True), 1), ((False, True, None), 1), ((False, False), 2)])
def test_inputs_without_gradients_have_outputs_that_are_not_described(described: tuple[Any, ...], expected: int) -> None:
    class Output:
        def __init__(self, is_grad: bool):
            self.is_grad = lambda: is_grad

    graph = torch.fx.Graph()
    graph.output(tuple(range(len(described))))
    (last,) = graph.nodes
    last.meta["desc"] = [None if each is None else Output(each) for each in described]
    assert stock.forward_outputs(graph) == expected
