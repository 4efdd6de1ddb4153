"""What programs do that a planner must leave as it is: random numbers, views, writes, shared weights, breaks, shapes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from stowplan.backends.torch import measure_peak, partitioner
from tests.backends.torch.training import Compiled, Decoder, assert_same, functional, gradients, nn, tight, torch, words

SECONDS = 1.0


def check(model: Any, *inputs: Any, part: float = 0.3, **tolerance: float) -> Compiled:
    """A tight step's gradients are eager's, and it recomputes something."""
    planner = tight(part)
    compiled = Compiled(model, planner)
    assert_same(gradients(model, lambda: compiled(*inputs).sum()), gradients(model, lambda: model(*inputs).sum()), **tolerance)
    assert planner.reports[0].added_runs > 0
    return compiled


def test_dropout_never_runs_again() -> None:
    compiled = check(Decoder(3, dropout=0.2), words())
    assert Counter(compiled.targets())["aten.native_dropout.default"] == 6


def test_views_and_parts() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                one, two = layer(x).chunk(2, -1)
                x = torch.cat([one.sin(), two.t().exp().t()], -1) + x.view(-1, 2, 16).transpose(1, 2).reshape(x.shape)
            return x

    check(Model(), torch.randn(64, 32))


def test_writes_in_place_and_statistics() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(4))
            self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(4))
            self.register_buffer("calls", torch.zeros(8, 1, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            for conv, norm in zip(self.convs, self.norms, strict=True):
                x = functional.relu_(norm(conv(x))) * self.calls
            return x

    model = Model()
    given = torch.randn(2, 8, 16, 16)
    planner = tight()
    compiled = Compiled(model, planner)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    found = gradients(model, lambda: compiled(given).sum())
    after = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    assert_same(found, gradients(model, lambda: model(given).sum()))
    for name, value in model.state_dict().items():
        torch.testing.assert_close(after[name], value)


def test_tied_weights() -> None:
    check(Decoder(2, is_tied=True), words())


def test_mixed_precision() -> None:
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = Decoder(2)

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.inside(given)

    check(Cast(), words())


def test_outputs_and_tangents_of_some_size() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = torch.tanh(layer(x)).sin()
            return x

    model, given = Model(), torch.randn(128, 16)
    planner = tight()
    compiled = Compiled(model, planner)

    def step() -> None:
        result = compiled(given)
        result.backward(torch.ones_like(result))

    step()
    model.zero_grad(set_to_none=True)
    assert measure_peak(step, model, given) <= planner.reports[0].peak


@pytest.mark.parametrize("loss", ["mse_loss", "smooth_l1_loss", "soft_margin_loss", "huber_loss", "l1_loss"])
def test_losses_keep_their_terms(loss: str) -> None:
    """Kernels of some leave the storage of all terms under the mean that they return."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(5))

        def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = torch.tanh(layer(x)).sin()
            return getattr(functional, loss)(x, wanted)

    model, given, wanted = Model(), torch.randn(512, 16), torch.randn(512, 16)
    planner = tight()
    compiled = Compiled(model, planner)
    compiled(given, wanted).backward()
    model.zero_grad(set_to_none=True)
    assert measure_peak(lambda: compiled(given, wanted).backward(), model, given, wanted) <= planner.reports[0].peak


def test_graphs_share_a_limit() -> None:
    class Broken(Decoder):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            x = self.blocks[0](self.embedding(given))
            torch._dynamo.graph_break()
            return self.head(self.blocks[1](x)).sum()

    model, given = Broken(2), words()
    planner = partitioner("1 MiB", graphs=2, time_limit=SECONDS)
    compiled = Compiled(model, planner)
    assert_same(gradients(model, lambda: compiled(given)), gradients(model, lambda: model(given)))
    assert len(planner.reports) == 2
    assert sum(each.peak for each in planner.reports) <= 1 << 20
    model.zero_grad(set_to_none=True)
    assert measure_peak(lambda: compiled(given).backward(), model, given) <= 1 << 20
    with pytest.raises(Exception, match="graphs=2"):
        gradients(model, lambda: Compiled(model, partitioner("1 MiB", time_limit=SECONDS))(given))


def test_shapes_that_change() -> None:
    model = Decoder(2)
    planner = tight()
    compiled = Compiled(model, planner, dynamic=True)
    for length in (64, 48, 40):
        given = words(2, length)
        assert_same(gradients(model, lambda: compiled(given)), gradients(model, lambda: model(given)))  # noqa: B023
    assert len(planner.reports) == 1
    assert planner.reports[0].added_runs > 0


def test_checkpointed_regions_stay() -> None:
    from torch.utils.checkpoint import checkpoint

    model = Decoder(3, dropout=0.1)
    model.around = lambda block, x: checkpoint(block, x, use_reentrant=False)
    planner = partitioner("1 GiB", time_limit=SECONDS)
    compiled = Compiled(model, planner)
    given = words()
    found = gradients(model, lambda: compiled(given))
    assert planner.reports
    # What is in a region runs again, but for what is random.
    count = Counter(compiled.targets())
    assert count["aten.silu.default"] == 6
    assert count["aten.native_dropout.default"] == 6
    model.around = lambda block, x: block(x)
    assert_same(found, gradients(model, lambda: model(given)))


def test_flops_of_attention_count() -> None:
    from torch._functorch.aot_autograd import aot_function

    from stowplan.backends.torch.reader import read

    seen = []

    def partition(module: Any, inputs: Any, **kwargs: Any) -> Any:
        from torch._functorch.partitioners import default_partition

        seen.append(read(module.graph, kwargs["num_fwd_outputs"]))
        return default_partition(module, inputs, **kwargs)

    shape = (2, 4, 16, 8)
    given = [torch.randn(shape, requires_grad=True) for _ in range(3)]
    attend = aot_function(functional.scaled_dot_product_attention, lambda graph, _: graph, partition_fn=partition)
    attend(*given).sum().backward()
    product = 2 * 2 * 4 * 16 * 16 * 8
    counted = [count for count, node in zip(seen[0].flops, seen[0].nodes, strict=True) if "attention" in str(node)]
    assert counted == [2 * product, 5 * product]
