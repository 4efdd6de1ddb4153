"""Limits of whole steps, in training scripts as people write them: what is measured is never above one, or is an error."""

from __future__ import annotations

import gc
import re
import warnings
from typing import Any

import pytest

from stowplan.backends.torch import MemoryLimitError, PlanningWarning, backend, measure_peak, measure_peaks
from stowplan.errors import UsageError
from tests.backends.torch.training import assert_same, torch

from benchmarks.torch_memory.scripts import (  # isort: skip
    SCRIPTS,
    WIDTH,
    accumulation,
    batch,
    criterion_outside,
    foreach,
    layer_by_layer,
    measured,
    network,
    weights,
)


HOST_BYTES = 40_000


def compiled(model: Any, limit: int, **options: Any) -> Any:
    return torch.compile(model, backend=backend(limit, time_limit=0.5, **options))


def check(make: Any, part: float, *, dynamic: bool | None = None, **options: Any) -> bool:
    """Whether a script runs within a part of what eager takes; else it ends in an error, with no step above before."""
    torch._dynamo.reset()
    gc.collect()
    eager, steps = make(lambda model: model)
    limit = int(part * max(measured(eager, steps)))
    planner = backend(limit, time_limit=0.5, **options)
    script, steps = make(lambda model: torch.compile(model, backend=planner, dynamic=dynamic))
    for step in steps:
        try:
            peaks = measure_peaks(step, *script.models, script.state())
        except (MemoryLimitError, torch._dynamo.exc.BackendCompilerFailed) as error:
            return not isinstance(getattr(error, "inner_exception", error), MemoryLimitError)
        assert peaks.device <= limit
        assert peaks.host <= HOST_BYTES
    assert_same(weights(script), weights(eager), rtol=0, atol=0)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.6, 0.85, 0.97, 2.0])
@pytest.mark.parametrize("make", SCRIPTS)
def test_no_step_is_above_a_strict_limit(make: Any, part: float) -> None:
    assert check(make, part) or part < 1


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("make", SCRIPTS)
def test_no_step_is_above_a_strict_limit_with_a_host(make: Any, dynamic: bool | None) -> None:
    check(make, 0.9, dynamic=dynamic, host=HOST_BYTES, host_bandwidth="1 TB/s", costs="h100")


@pytest.mark.parametrize("make", [accumulation, layer_by_layer])
def test_graphs_are_planned_anew_within_what_is_left(make: Any) -> None:
    assert check(make, 1.01)


def test_a_large_evaluation_at_the_end_is_an_error() -> None:
    """Nothing runs behind it, and its loss is not compiled."""
    torch._dynamo.reset()
    eager, (step, *_) = criterion_outside(lambda model: model)
    limit = int(1.05 * max(measured(eager, [step])))
    script, (step, *_) = criterion_outside(lambda model: compiled(model, limit))
    for _ in range(3):
        step()
    with torch.no_grad():
        results = script.made[0](batch()[0])
        with pytest.raises(MemoryLimitError, match=r"in a step without gradients, .*: take a smaller batch"):
            torch.cdist(results, results).repeat(4, 4)


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
        MemoryLimitError, match=rf"a step took \d+ bytes, and the limit is {limit}: .* pass outside=\d+, at most"
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
    script, steps = foreach(lambda model: compiled(model, limit, outside=0, strict=False))
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
    assert earlier
    assert kept.report.steps.count == 0


def test_bytes_outside_are_less_than_the_limit() -> None:
    for outside in (1000, "1 KB", 2000, -1, "much", 1.5):
        with pytest.raises(UsageError, match="found an outside of"):
            backend(1000, outside=outside)  # type: ignore[arg-type]
