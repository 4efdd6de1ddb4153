"""What training loops of ``benchmarks.torch_memory.loops`` have shown to be wrong."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stowplan.backends.torch import MemoryLimitError, PlanningWarning, measure_peak
from tests.backends.torch.test_scopes import SELECTIVE, WIDTH, Experts, Loop, check, checkpointed, layers, memory_of, trained
from tests.backends.torch.training import torch


def annealed(counts: list[int], wrap: Any) -> Any:
    """The loss is compiled with the model, and is given a number that changes from step to step."""
    model = layers(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run, step_number = wrap(lambda x, weight: model(x).square().mean() + weight * model[0].weight.square().sum()), 0

    def step() -> float:
        nonlocal step_number
        loss = run(torch.randn(counts[step_number % len(counts)], WIDTH), 0.5**step_number)
        step_number += 1
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step, [model]


def test_a_number_that_changes_from_step_to_step() -> None:
    with pytest.warns(PlanningWarning, match=r"torch\.compile compiles a graph only once: .*: its plan of least peak stays"):
        check(partial(annealed, [256]), 0.85, 7)


@pytest.mark.filterwarnings("ignore::stowplan.backends.torch.PlanningWarning")
def test_numbers_and_sizes_that_change() -> None:
    check(partial(annealed, [256, 192, 128]), 0.95, 7)


def test_a_graph_under_a_selective_checkpoint_keeps_its_plan() -> None:
    make = partial(checkpointed, SELECTIVE)
    eager = Loop(make).run(5)
    memory = memory_of(int(1.1 * max(eager.peaks)))
    assert Loop(make, memory.compile).run(5).losses == eager.losses
    assert {report.source for report in memory.reports} == {"first steps"}


def kept_on(wrap: Any) -> Any:
    """Gradients of two losses, with a graph that is kept until the next step has made its own."""
    model = layers(4)
    run, inside = wrap(model), torch.zeros(())

    def step() -> float:
        nonlocal inside
        inside = run(torch.randn(256, WIDTH))
        losses, parameters = (inside.square().mean(), inside.abs().mean()), [*model.parameters()]
        found = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]
        with torch.no_grad():
            for each, *gradients in zip(parameters, *found, strict=True):
                each -= 0.1 * sum(gradients)
        return sum(loss.item() for loss in losses)

    return step, [model]


def test_a_graph_that_is_kept_into_the_next_step_is_planned_anew() -> None:
    eager = Loop(kept_on).run(6)
    memory = memory_of(int(0.9 * max(eager.peaks)))
    loop = Loop(kept_on, memory.compile)
    train = loop.step

    def step() -> float:
        with memory.step():
            return train()

    loop.step = step
    assert loop.run(6).losses == eager.losses
    assert max(loop.peaks) <= memory.report.steps.limit
    assert [report.source for report in memory.reports][-1] != "first steps"


@pytest.mark.parametrize("rows", [256, 8], ids=["activations", "optimizer"])
@pytest.mark.filterwarnings("ignore::stowplan.backends.torch.PlanningWarning")
def test_where_nothing_is_compiled_the_first_step_is_checked(rows: int) -> None:
    def make(wrap: Any) -> Any:
        return trained(Experts(), wrap, lambda: torch.randn(rows, WIDTH))

    memory = memory_of(int(0.8 * max(Loop(make).run(1).peaks)))
    with pytest.raises(MemoryLimitError, match=r"torch\.compile made no graph of the model"):
        Loop(make, memory.compile).run(1)


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_compiled_model_within_distributed_data_parallel() -> None:
    def trained_within(wrap: Any) -> tuple[list[float], list[Any]]:
        torch.manual_seed(0)
        model, losses = layers(6), list[float]()
        run = torch.nn.parallel.DistributedDataParallel(wrap(model))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(5):
            loss = run(torch.randn(256, WIDTH)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, [parameter.detach().clone() for parameter in model.parameters()]

    memory = memory_of(1 << 24)
    expected, parameters = trained_within(lambda model: model)
    losses, trained_parameters = trained_within(memory.compile)
    assert losses == expected
    assert all(map(torch.equal, trained_parameters, parameters))
    assert memory.reports
    assert memory.report.steps.largest > 0


@pytest.mark.usefixtures("one_process")
@pytest.mark.filterwarnings("ignore")
def test_distributed_data_parallel_within_a_compiled_model_says_that_there_is_no_graph() -> None:
    memory = memory_of(1 << 18)
    run = memory.compile(torch.nn.parallel.DistributedDataParallel(layers(6)))
    with pytest.raises(MemoryLimitError, match=r"torch\.compile made no graph of the model"):
        run(torch.randn(1024, WIDTH)).square().mean().backward()


def test_the_first_steps_of_a_head_behind_a_frozen_model_add_no_work() -> None:
    """To compute the frozen model again would save its last result at the border, and take all of it in the backward pass."""
    torch.manual_seed(0)
    nn = torch.nn
    frozen = nn.Sequential(nn.Linear(WIDTH, 32 * WIDTH), nn.GELU(), nn.Linear(32 * WIDTH, WIDTH)).requires_grad_(False)
    head = nn.Linear(WIDTH, WIDTH)
    model, optimizer = nn.Sequential(frozen, head), torch.optim.SGD(head.parameters(), lr=0.1)

    def step(run: Any) -> None:
        run(torch.randn(1024, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step(model)
    memory = memory_of(int(1.05 * measure_peak(lambda: step(model))))
    run = memory.compile(model)
    with memory.step():
        step(run)
    assert memory.reports[0].added_flops == 0
