"""Limits of whole steps, in training scripts as people write them: what is measured is never above one, or is an error."""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from stowplan.backends.torch import MemoryLimitError, PlanningWarning, backend, measure_peak
from stowplan.errors import UsageError
from tests.backends.torch.training import assert_same, functional, nn, torch

WIDTH, CLASSES, BATCH = 32, 48, 64


def network(layers: int = 4, out: int = CLASSES) -> Any:
    torch.manual_seed(0)
    hidden = [layer for _ in range(layers) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, out))


def batch(count: int = BATCH) -> tuple[Any, Any]:
    torch.manual_seed(1)
    return torch.randn(count, WIDTH), torch.randint(0, CLASSES, (count,))


def compiled(model: Any, limit: int, **options: Any) -> Any:
    return torch.compile(model, backend=backend(limit, time_limit=0.5, **options))


class Script:
    """A training script; ``steps`` are functions, and each optimizer's state counts."""

    def __init__(self, models: list[Any], wrap: Callable[[Any], Any]):
        self.models = models
        self.optimizers: list[Any] = []
        self.made = [wrap(model) for model in models]

    def state(self) -> list[Any]:
        return [value for optimizer in self.optimizers for row in optimizer.state.values() for value in row.values()]


def criterion_outside(wrap: Any, make: Any = None, model: Any = None) -> tuple[Script, list[Any]]:
    script = Script([model or network()], wrap)
    (model,), (run,) = script.models, script.made
    script.optimizers = [make(model.parameters()) if make else torch.optim.SGD(model.parameters(), lr=0.1)]

    def step() -> None:
        x, y = batch()
        functional.cross_entropy(run(x), y).backward()
        script.optimizers[0].step()
        script.optimizers[0].zero_grad()

    return script, [step] * 4


def foreach(wrap: Any) -> Any:
    return criterion_outside(wrap, lambda given: torch.optim.Adam(given, foreach=True))


def one_by_one(wrap: Any) -> Any:
    return criterion_outside(wrap, lambda given: torch.optim.AdamW(given, foreach=False))


def momentum(wrap: Any) -> Any:
    return criterion_outside(wrap, lambda given: torch.optim.SGD(given, lr=0.1, momentum=0.9))


def accumulation(wrap: Any) -> Any:
    script, _ = criterion_outside(wrap)
    (run,) = script.made

    def step() -> None:
        for _ in range(3):
            x, y = batch()
            (functional.cross_entropy(run(x), y) / 3).backward()
        script.optimizers[0].step()
        script.optimizers[0].zero_grad()

    return script, [step] * 3


def two_models(wrap: Any) -> Any:
    script = Script([network(2, WIDTH), network(2)], wrap)
    script.optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in script.models]

    def step() -> None:
        x, y = batch()
        functional.cross_entropy(script.made[1](script.made[0](x)), y).backward()
        for optimizer in script.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return script, [step] * 3


def evaluation_between(wrap: Any) -> Any:
    script, (step, *_) = criterion_outside(wrap)

    def evaluate() -> None:
        with torch.no_grad():
            x, y = batch(2 * BATCH)
            functional.cross_entropy(script.made[0](x), y)

    return script, [step, evaluate, step, evaluate, step]


def larger_last_batch(wrap: Any) -> Any:
    script, _ = criterion_outside(wrap)

    def of(count: int) -> Callable[[], None]:
        def step() -> None:
            x, y = batch(count)
            script.made[0](x).gather(1, y[:, None]).mean().backward()
            script.optimizers[0].step()
            script.optimizers[0].zero_grad()

        return step

    return script, [of(BATCH), of(BATCH // 2), of(BATCH), of(6 * BATCH)]


def mixed_precision(wrap: Any) -> Any:
    script, _ = criterion_outside(wrap)

    def step() -> None:
        x, y = batch()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = functional.cross_entropy(script.made[0](x), y)
        loss.backward()
        script.optimizers[0].step()
        script.optimizers[0].zero_grad()

    return script, [step] * 3


def clipped(wrap: Any) -> Any:
    script, _ = criterion_outside(wrap)

    def step() -> None:
        x, y = batch()
        functional.cross_entropy(script.made[0](x), y).backward()
        nn.utils.clip_grad_norm_(script.models[0].parameters(), 1.0)
        script.optimizers[0].step()
        script.optimizers[0].zero_grad()

    return script, [step] * 3


SCRIPTS = [
    criterion_outside,
    foreach,
    one_by_one,
    momentum,
    accumulation,
    two_models,
    evaluation_between,
    larger_last_batch,
    mixed_precision,
    clipped,
]


def measured(script: Script, steps: list[Any]) -> list[int]:
    """Peak of each step, as far as none is an error."""
    return [measure_peak(step, *script.models, script.state()) for step in steps]


def weights(script: Script) -> list[Any]:
    return [each.detach().clone() for model in script.models for each in model.parameters()]


def check(make: Any, part: float, *, dynamic: bool | None = None) -> bool:
    """Whether a script runs within a part of what eager takes; else it ends in an error, with no step above before."""
    torch._dynamo.reset()
    gc.collect()
    eager, steps = make(lambda model: model)
    limit = int(part * max(measured(eager, steps)))
    script, steps = make(lambda model: torch.compile(model, backend=backend(limit, graphs=2, time_limit=0.5), dynamic=dynamic))
    if len(script.models) == 1:
        torch._dynamo.reset()
        planner = backend(limit, time_limit=0.5)
        script, steps = make(lambda model: torch.compile(model, backend=planner, dynamic=dynamic))
    for step in steps:
        try:
            peak = measure_peak(step, *script.models, script.state())
        except (MemoryLimitError, torch._dynamo.exc.BackendCompilerFailed) as error:
            return not isinstance(getattr(error, "inner_exception", error), MemoryLimitError)
        assert peak <= limit
    assert_same(weights(script), weights(eager), rtol=0, atol=0)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.6, 0.85, 0.97, 2.0])
@pytest.mark.parametrize("make", SCRIPTS)
def test_no_step_is_above_a_strict_limit(make: Any, part: float) -> None:
    assert check(make, part) or part < 1


def wide_loss(limit: int, outside: int = 0) -> Any:
    return criterion_outside(lambda model: compiled(model, limit, outside=outside), model=network(10, 200))


def limit_of_a_wide_loss() -> int:
    torch._dynamo.reset()
    eager, (step, *_) = criterion_outside(lambda model: model, model=network(10, 200))
    return max(measured(eager, [step])) - 4000


def test_a_loss_outside_that_is_above_the_limit_is_an_error() -> None:
    limit = limit_of_a_wide_loss()
    script, (step, *_) = wide_loss(limit)
    with pytest.raises(
        MemoryLimitError, match=rf"a step took \d+ bytes, and the limit is {limit}: .* say outside=\d+, at most"
    ):
        step()
    assert script.optimizers[0].state == {}


@pytest.mark.slow
def test_bytes_that_the_error_says_make_it_fit() -> None:
    limit, outside = limit_of_a_wide_loss(), 0
    for _ in range(10):
        torch._dynamo.reset()
        script, steps = wide_loss(limit, outside)
        try:
            assert max(measured(script, 3 * steps)) <= limit
        except MemoryLimitError as error:
            larger = int(re.findall(r"outside=(\d+)", str(error))[0])
            assert larger > outside
            outside = larger
        else:
            break
    else:
        pytest.fail(f"not within the limit with outside={outside}")


def test_a_step_above_is_one_warning_if_asked_for() -> None:
    torch._dynamo.reset()
    eager, steps = foreach(lambda model: model)
    limit = int(0.9 * max(measured(eager, steps)))
    script, steps = foreach(lambda model: compiled(model, limit, strict=False))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in steps:
            step()
    said = [str(each.message) for each in caught if each.category is PlanningWarning]
    assert [text.startswith("a step took") for text in said] == [True]
    assert_same(weights(script), weights(eager), rtol=0, atol=0)


@pytest.mark.parametrize("dynamic", [None, True])
def test_larger_sizes_are_planned_anew_or_refused(dynamic: bool | None) -> None:
    """A plan within the limit for some sizes is for others only as far as they fit too."""
    torch._dynamo.reset()
    model = network()
    limit = 150_000
    planner = backend(limit, time_limit=0.5)
    run = torch.compile(model, backend=planner, dynamic=dynamic)
    peaks, said = {}, []
    for count in (48, 24, 72, 96, 640):
        x = torch.randn(count, WIDTH)

        def step() -> None:
            run(x).square().mean().backward()  # noqa: B023

        try:
            peaks[count] = measure_peak(step, model, x)
        except (MemoryLimitError, torch._dynamo.exc.BackendCompilerFailed) as error:
            said.append(str(error))
        model.zero_grad()
    assert {48, 24, 72} <= peaks.keys()
    assert max(peaks.values()) <= limit
    assert 640 not in peaks
    assert "the limit is 150000" in said[-1]


def test_a_model_compiled_again_keeps_the_later_limit() -> None:
    torch._dynamo.reset()
    script, (step, *_) = criterion_outside(lambda model: compiled(model, 10**6))
    step()
    (model,), earlier = script.models, script.made
    script.made[0] = compiled(model, 10**7)
    kept = backend(1000)  # one that never runs
    for _ in range(20):
        step()
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []
    assert earlier
    assert kept


def test_bytes_outside_are_less_than_the_limit() -> None:
    for outside in (1000, "1 KB", 2000, -1, "much", 1.5):
        with pytest.raises(UsageError, match="found an outside of"):
            backend(1000, outside=outside)  # type: ignore[arg-type]
