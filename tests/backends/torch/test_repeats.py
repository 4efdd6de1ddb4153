"""One layer compiled, used several times: what all of them keep, and what one takes at work."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest

from stowplan.backends.torch import MemoryLimitError, PlanningWarning, backend, measure_peak
from stowplan.errors import UsageError
from tests.backends.torch.training import Block, Tensor, assert_same, functional, nn, torch, words

WIDTH, LAYERS = 32, 6


class Layers(nn.Module):
    """Each layer may be compiled alone."""

    def __init__(self, layers: int = LAYERS):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(50, WIDTH), nn.Linear(WIDTH, 50)
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(layers))

    def forward(self, given: Tensor, is_checkpointed: bool = False) -> Tensor:
        x = self.embedding(given)
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) if is_checkpointed else block(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), given.flatten())

    def compiled(self, limit: int, **options: Any) -> Any:
        torch._dynamo.reset()
        gc.collect()
        made = backend(limit, **{"repeats": LAYERS, "time_limit": 2.0, "outside": 4 * 128 * (2 * 50 + WIDTH)} | options)
        plain = [getattr(block, "_orig_mod", block) for block in self.blocks]
        self.blocks = nn.ModuleList(torch.compile(block, backend=made) for block in plain)
        return made


def gradients(model: Any, **how: Any) -> list[Tensor]:
    model.zero_grad(set_to_none=True)
    model(words(), **how).backward()
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    return found


def peak(model: Any, **how: Any) -> int:
    given = words()
    found = measure_peak(lambda: model(given, **how).backward(), model, given)
    model.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize("part", [0.97, 1.3])
def test_what_all_layers_keep_is_within_the_limit(part: float) -> None:
    model = Layers()
    expected, limit = gradients(model), int(part * peak(model, is_checkpointed=True))
    made = model.compiled(limit)
    assert_same(gradients(model), expected, rtol=0, atol=0)
    assert peak(model) <= limit
    for report in made.reports:
        assert report.peak <= report.limit
        assert (report.bound or 0) <= report.added_cost


@pytest.mark.parametrize("part", [1.2, 1.6])
def test_parameters_that_come_before_the_first_graph_count(part: float) -> None:
    """An embedding's backward pass does not read its weight, and there is no optimizer that names it."""
    model = Layers()
    model.embedding = nn.Embedding(2000, WIDTH)
    expected, limit = gradients(model), int(part * peak(model, is_checkpointed=True))
    model.compiled(limit, repeats=None, outside=None)
    for _ in range(4):
        assert_same(gradients(model), expected, rtol=0, atol=0)
        assert peak(model) <= limit


def test_steps_of_layers_above_the_limit_are_errors() -> None:
    model = Layers()
    limit = int(0.6 * peak(model, is_checkpointed=True))
    model.compiled(limit, repeats=None, outside=None)
    with pytest.raises(MemoryLimitError, match=r"a step took \d+ bytes, and the limit is \d+"):
        gradients(model)


def test_the_planned_peak_is_one_that_is_measured() -> None:
    """Of layers alone, with all that they are called with."""
    model = Layers()
    eager = peak(model)
    made = model.compiled(int(0.7 * eager))
    x = torch.randn(2, 64, WIDTH, requires_grad=True)
    blocks = model.blocks

    def step() -> None:
        y = x
        for block in blocks:
            y = block(y)
        y.sum().backward()

    step()
    x.grad = None
    model.zero_grad(set_to_none=True)
    found = measure_peak(step, blocks, x)
    (report,) = made.reports
    assert 0.9 * report.peak <= found <= report.peak + 8


def test_a_repeat_more_than_said_is_an_error_before_it_runs() -> None:
    model = Layers()
    expected, limit = gradients(model), 2 * peak(model)
    model.compiled(limit, repeats=LAYERS - 1)
    with pytest.raises(MemoryLimitError, match=rf"runs {LAYERS} times .* expected {LAYERS - 1}: say repeats={LAYERS}"):
        model(words())
    model.compiled(limit, repeats=LAYERS - 1, strict=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert_same(gradients(model), expected, rtol=0, atol=0)
        assert_same(gradients(model), expected, rtol=0, atol=0)
    said = [str(warning.message) for warning in caught if warning.category is PlanningWarning]
    assert [text.endswith(f"say repeats={LAYERS}") for text in said] == [True]


def test_a_loss_that_never_calls_backward_is_no_repeat() -> None:
    model = Layers()
    model.compiled(2 * peak(model))
    for _ in range(3):
        model(words())
    gradients(model)
    with torch.no_grad():
        model(words())


@pytest.mark.parametrize("repeats", [0, -1, 1.5, "many", True])
def test_bad_repeats_say_so(repeats: Any) -> None:
    with pytest.raises(UsageError, match=r"found .* repeats, expected at least 1"):
        backend(1000, repeats=repeats)
