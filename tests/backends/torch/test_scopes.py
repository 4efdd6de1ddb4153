"""Training loops as people write them: what eager runs runs, and no step is above a limit without an error."""

from __future__ import annotations

import gc
import random
import re
import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stowplan.backends import torch as package
from stowplan.backends.torch import MemoryLimitError, PlanningWarning, TrainingMemory, backend, measure_peak
from stowplan.errors import UsageError
from tests.backends.torch.training import Compiled, assert_same, functional, gradients, nn, torch

checkpoint = torch.utils.checkpoint

WIDTH = 32


def layers(count: int = 4, width: int = WIDTH, *extra: Any) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(*(part() for _ in range(count) for part in ((lambda: nn.Linear(width, width)), nn.GELU, *extra)))


def memory_of(limit: int | str, **options: Any) -> TrainingMemory:
    torch._dynamo.reset()
    gc.collect()
    return TrainingMemory(limit, **{"time_limit": 0.5, **options})


class Loop:
    """A loop over steps; ``make`` is given what compiles a model, and returns a step and all that its meter is to know."""

    def __init__(self, make: Callable[[Any], tuple[Callable[[], Any], list[Any]]], wrap: Any = None):
        torch.manual_seed(0)
        self.step, self.present = make(wrap or (lambda model: model))
        self.peaks: list[int] = []
        self.losses: list[Any] = []

    def run(self, count: int = 5) -> Loop:
        for _ in range(count):
            gc.collect()
            self.peaks.append(measure_peak(lambda: self.losses.append(self.step()), *self.present))
        return self


def check(make: Any, part: float, count: int = 5, **options: Any) -> TrainingMemory:
    """Within a part of what eager takes, a loop takes no more, and has eager's losses to the bit."""
    eager = Loop(make).run(count)
    memory = memory_of(int(part * max(eager.peaks)), **options)
    loop = Loop(make, memory.compile).run(count)
    assert loop.losses == eager.losses
    assert max(loop.peaks) <= memory.report.steps.limit
    return memory


# ------------------------------------------------------------------------------------------ what eager runs runs


def closures(kind: str, wrap: Any) -> Any:
    model, x = layers(2), torch.randn(64, WIDTH)
    run, optimizer = wrap(model), getattr(torch.optim, kind)(model.parameters(), lr=0.01)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = run(x).square().mean()
        loss.backward()
        return loss

    return lambda: float(optimizer.step(closure).detach()), [model, x, optimizer]


@pytest.mark.parametrize("kind", ["SGD", "Adam", "LBFGS"])
def test_an_optimizer_that_calls_a_closure(kind: str) -> None:
    check(partial(closures, kind), 2.0, 3)


def normed_twice(wrap: Any) -> Any:
    """Two views of a batch before one backward pass, through norms that write over their statistics."""
    model = layers(3, WIDTH, lambda: nn.BatchNorm1d(WIDTH))
    run, optimizer = wrap(model), torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(64, WIDTH)

    def step() -> float:
        loss = (run(x) * run(x + 1)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step, [model, x]


def test_a_norm_that_runs_twice_before_a_backward_pass() -> None:
    memory = check(normed_twice, 0.8)
    assert any(report.added_runs for report in memory.reports)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


def saved(_: Any, operator: Any, *__: Any, **___: Any) -> Any:
    policy = checkpoint.CheckpointPolicy
    return policy.MUST_SAVE if operator is torch.ops.aten.addmm.default else policy.PREFER_RECOMPUTE


SELECTIVE = {"use_reentrant": False, "context_fn": partial(checkpoint.create_selective_checkpoint_contexts, saved)}


def checkpointed(how: dict[str, Any], wrap: Any) -> Any:
    blocks = nn.ModuleList(Block() for _ in range(3))
    runs = [wrap(block) for block in blocks]
    optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
    x = torch.randn(128, WIDTH, requires_grad=True)

    def step() -> float:
        y = x
        for run in runs:
            y = checkpoint.checkpoint(run, y, **how)
        loss = y.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        x.grad = None
        return loss.item()

    return step, [blocks, x]


@pytest.mark.parametrize(
    "how", [SELECTIVE, {"use_reentrant": False}, {"use_reentrant": True}], ids=["sac", "plain", "reentrant"]
)
def test_checkpoints_around_compiled_blocks(how: Any) -> None:
    make = partial(checkpointed, how)
    torch._dynamo.reset()
    plain = Loop(make, partial(torch.compile, backend="aot_eager")).run(3)
    memory = memory_of(int(1.02 * max(plain.peaks)))
    loop = Loop(make, memory.compile).run(6)
    assert loop.losses[:3] == plain.losses
    assert max(loop.peaks) <= memory.report.steps.limit


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.one, self.other = layers(3), nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 1)

    def forward(self, x: Any) -> Any:
        y = self.trunk(x)
        return self.one(y), self.other(y)


def retained(wrap: Any) -> Any:
    model = Heads()
    run, optimizer = wrap(model), torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(256, WIDTH)

    def step() -> float:
        one, other = run(x)
        one.square().mean().backward(retain_graph=True)
        loss = other.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step, [model, x]


def test_a_graph_that_is_kept_for_another_backward_pass() -> None:
    memory = check(retained, 0.9)
    assert [report.source for report in memory.reports][-1] != "first steps"


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return (x @ weight).relu()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, weight = ctx.saved_tensors
        gradient = gradient * ((x @ weight) > 0)
        return gradient @ weight.t(), x.t() @ gradient


class Products(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(0.1 * torch.randn(WIDTH, WIDTH)) for _ in range(5))

    def forward(self, x: Any) -> Any:
        for weight in self.weights:
            x = Product.apply(x, weight) + x
        return x


def trained(model: Any, wrap: Any, make_batch: Callable[[], Any] = lambda: torch.randn(256, WIDTH), loss: Any = None) -> Any:
    run, optimizer = wrap(model), torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> float:
        x = make_batch()
        value = loss(run, x) if loss else run(x).square().mean()
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(value.detach())

    return step, [model]


def test_a_function_with_a_backward_pass_of_its_own() -> None:
    check(lambda wrap: trained(Products(), wrap), 0.85)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.inside, self.head = nn.Embedding(64, WIDTH), layers(2), nn.Linear(WIDTH, 64)

    def forward(self, words: Any) -> Any:
        return self.head(self.inside(self.embedding(words)))


@pytest.mark.filterwarnings("error::stowplan.backends.torch.PlanningWarning")
def test_lengths_that_change_under_a_view() -> None:
    lengths = random.Random(0)

    def loss(run: Any, words: Any) -> Any:
        return functional.cross_entropy(run(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())

    def make(wrap: Any) -> Any:
        lengths.seed(0)
        return trained(Words(), wrap, lambda: torch.randint(0, 64, (8, lengths.choice([33, 17, 25]))), loss)

    check(make, 0.95, 7)


def test_parts_of_a_model_and_losses_with_hooks_on_what_is_saved() -> None:
    def pieces(run: Any, x: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor):
            y = run(x)
        return y.square().mean() + run(x + 1).abs().mean()

    check(lambda wrap: trained(layers(), wrap, loss=pieces), 1.3, 4)


def test_a_gradient_of_a_gradient_is_torchs_own_error() -> None:
    memory = memory_of("1 GiB")
    run, x = memory.compile(layers(2)), torch.randn(8, WIDTH, requires_grad=True)
    (gradient,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        gradient.square().sum().backward()


def test_graph_breaks_share_the_limit() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = layers(3), layers(3)

        def forward(self, x: Any) -> Any:
            x = self.one(x)
            torch._dynamo.graph_break()
            return self.other(x)

    check(lambda wrap: trained(Broken(), wrap), 0.85)


# ------------------------------------------------------------------------------------------ planning changes nothing global


def everything_global() -> list[Any]:
    cudnn = torch.backends.cudnn
    return [
        torch.get_rng_state().tolist(),
        [torch.cuda.get_rng_state(at).tolist() for at in range(torch.cuda.device_count())],
        random.getstate(),
        str(np.random.get_state()),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")],
        torch.is_autocast_cache_enabled(),
        (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32),
        torch.backends.cuda.matmul.allow_tf32,
        torch.get_float32_matmul_precision(),
        torch.get_num_threads(),
    ]


def test_planning_leaves_all_that_is_global(monkeypatch: pytest.MonkeyPatch) -> None:
    from stowplan.backends.torch.fitting import Fitting
    from stowplan.backends.torch.partition import Partitioner

    seen = []

    def compared(function: Any) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            before = everything_global()
            result = function(*arguments, **options)
            assert everything_global() == before
            seen.append(function.__name__)
            return result

        return run

    def disturbed(self: Any, *arguments: Any) -> Any:
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)
        torch.set_default_dtype(torch.float64)
        torch.set_default_dtype(torch.float32 if torch.get_default_dtype() is torch.float64 else torch.float64)
        return planned(self, *arguments)

    planned = Partitioner._plan
    monkeypatch.setattr(Partitioner, "_plan", disturbed)
    monkeypatch.setattr(Partitioner, "__call__", compared(Partitioner.__call__))
    monkeypatch.setattr(Fitting, "_compiled", compared(Fitting._compiled))
    memory = check(lambda wrap: trained(layers(4, WIDTH, lambda: nn.Dropout(0.3)), wrap), 0.9, costs="profile")
    assert len(memory.reports) == seen.count("_compiled") == 2


class Chance(nn.Module):
    """What the dropout reads is saved, for the backward pass of the softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.other(functional.dropout(self.one(x).softmax(-1), 0.5))


def test_a_backward_pass_draws_nothing() -> None:
    from stowplan.backends.torch.halves import split
    from stowplan.backends.torch.partition import prepared
    from stowplan.backends.torch.reader import read
    from stowplan.models.rematerialization.structure import build

    def partition(module: Any, _: Any, **options: Any) -> Any:
        module, count = prepared(module), options["num_fwd_outputs"]
        reading = read(module.graph, count)
        structure = build(reading.problem)
        return split(module, reading, structure.made(structure.order), num_fwd_outputs=count)

    model, x = Chance(), torch.randn(8, WIDTH)
    compiled = Compiled(model, partition)
    expected = gradients(model, lambda: model(x).sum())
    state = torch.get_rng_state()
    assert_same(gradients(model, lambda: compiled(x).sum()), expected, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert compiled.targets().count("aten.native_dropout.default") == 1


# ------------------------------------------------------------------------------------------ limits are strict in all steps


def stepped_in_hooks(wrap: Any) -> Any:
    model = layers(4)
    run = wrap(model)
    optimizers = {each: torch.optim.AdamW([each], lr=1e-3, foreach=False) for each in model.parameters()}

    def hook(parameter: Any) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(hook)

    def step() -> float:
        loss = run(torch.randn(256, WIDTH)).square().mean()
        loss.backward()
        return float(loss.detach())

    return step, [model, *optimizers.values()]


def test_optimizers_that_step_in_the_backward_pass() -> None:
    check(stepped_in_hooks, 0.85)


def with_masters(wrap: Any) -> Any:
    model = layers(4).bfloat16()
    run, masters = wrap(model), [each.detach().float().requires_grad_() for each in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-3)

    def step() -> float:
        loss = run(torch.randn(32, WIDTH, dtype=torch.bfloat16)).float().square().mean()
        loss.backward()
        for master, each in zip(masters, model.parameters(), strict=True):
            master.grad, each.grad = each.grad.float(), None
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for master, each in zip(masters, model.parameters(), strict=True):
                each.copy_(master)
        return float(loss.detach())

    return step, [model, masters]


def test_an_optimizer_of_other_parameters_is_seen() -> None:
    eager = Loop(with_masters).run(3)
    memory = memory_of(int(0.7 * max(eager.peaks)))
    loop = Loop(with_masters, memory.compile)
    with pytest.raises(MemoryLimitError, match=r"a step took \d+ bytes, .* the peak is between the graphs"):
        loop.run(3)
    assert max(loop.peaks, default=0) <= memory.report.steps.limit


class Growing:
    """A model that trains within a limit; later steps are to take more."""

    def __init__(self, **options: Any) -> None:
        torch._dynamo.reset()
        model = layers(3)
        self.step, _ = trained(model, lambda model: model)
        for _ in range(2):
            self.step()
        limit = int(1.2 * measure_peak(self.step, model))
        self.memory = memory_of(limit, **options)
        self.run = self.memory.compile(model)
        self.step, _ = trained(model, lambda _: self.run)
        for _ in range(12):
            self.step()


def test_batches_that_were_made_before_the_loop() -> None:
    """Each is found in the step that takes it, and stays: the plans of least peak return if it does not fit."""
    torch.manual_seed(2)
    batches = [(torch.randn(1024, 128), torch.randn(1024, 1)) for _ in range(5)]

    def losses(wrap: Any, run: Callable[[Callable[[], float]], float]) -> list[float]:
        torch.manual_seed(1)
        blocks = [part for _ in range(8) for part in (nn.Linear(128, 128), nn.Tanh(), nn.LayerNorm(128))]
        model = nn.Sequential(*blocks, nn.Linear(128, 1))
        call, optimizer = wrap(model), torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

        def step(x: Any, y: Any) -> float:
            loss = (call(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return float(loss.detach())

        return [run(partial(step, *batch)) for batch in batches]

    memory = memory_of(7_600_000, time_limit=5)

    def within_limit(step: Callable[[], float]) -> float:
        with memory.step():
            return step()

    assert losses(memory.compile, within_limit) == losses(lambda model: model, lambda step: step())
    assert memory.report.steps.largest <= 7_600_000


def test_lists_and_losses_that_grow_late_are_errors() -> None:
    loop = Growing()
    with pytest.raises(MemoryLimitError, match="the peak is in a step without gradients"), torch.no_grad():
        _ = [loop.run(torch.randn(256, WIDTH)) for _ in range(60)]
    kept = []

    def keep() -> None:
        for _ in range(60):
            loop.step()
            kept.append(loop.run(torch.randn(256, WIDTH)).detach())

    with pytest.raises(MemoryLimitError, match=r"a step took \d+ bytes"):
        keep()
    kept.clear()
    gc.collect()
    loop.step()
    x = torch.randn(256, WIDTH)
    with pytest.raises(MemoryLimitError, match=r"pass (margin|memory)=\d+"):
        torch.cdist(loop.run(x), loop.run(x)).sigmoid().mean().backward()
    steps = loop.memory.report.steps
    assert steps.checked == steps.count > 12
    assert steps.by == "storages"
    assert steps.largest > steps.limit


def test_steps_are_counted_at_intervals_if_asked_for() -> None:
    loop = Growing(check_every=4)
    steps = loop.memory.report.steps
    assert steps.count == 12
    assert 4 <= steps.checked <= 7


class Experts(nn.Module):
    """Sizes depend on data, in a loop: nothing of it is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, 3), nn.ModuleList(layers(1) for _ in range(3))

    def forward(self, x: Any) -> Any:
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero(as_tuple=True)[0]
            y = y.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        return x + y


def test_where_nothing_is_compiled_a_limit_is_checked() -> None:
    eager = Loop(lambda wrap: trained(Experts(), wrap)).run(2)
    memory = memory_of(2 * max(eager.peaks))
    with pytest.warns(PlanningWarning, match=r"torch\.compile made no graph of the model"):
        Loop(lambda wrap: trained(Experts(), wrap), memory.compile).run(2)
    memory = memory_of(int(0.8 * max(eager.peaks)))
    with pytest.raises(MemoryLimitError, match=r"torch\.compile made no graph of the model, so that nothing was planned"):
        Loop(lambda wrap: trained(Experts(), wrap), memory.compile).run(2)


# ------------------------------------------------------------------------------------------ what errors say, and what is proven


def truncated(wrap: Any) -> Any:
    """A cell that runs four times before each backward pass, and a state that is kept."""
    cell = layers(2)
    run, optimizer = wrap(cell), torch.optim.Adam(cell.parameters())
    state = torch.zeros(64, WIDTH)

    def step() -> float:
        nonlocal state
        state, loss = state.detach(), torch.zeros(())
        for _ in range(4):
            state = run(state + torch.randn(64, WIDTH))
            loss = loss + state.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step, [cell]


@pytest.mark.parametrize("make", [truncated, lambda wrap: trained(layers(6), wrap), retained])
def test_the_least_limit_runs_and_is_never_said_to_be_proven_impossible(make: Any) -> None:
    memory = memory_of("1 GiB")
    loop = Loop(make, memory.compile)
    least = memory.least(loop.step)
    del loop
    memory = memory_of(least)
    loop = Loop(make, memory.compile).run(5)
    assert max(loop.peaks) <= least
    for part in (0.9, 0.6, 0.3):
        memory = memory_of(int(part * min(loop.peaks)))
        smaller = Loop(make, memory.compile)
        with pytest.raises(Exception, match="bytes") as caught:
            smaller.run(3)
        error = getattr(caught.value, "inner_exception", caught.value)
        assert isinstance(error, MemoryLimitError)
        assert error.bound <= min(loop.peaks)


def test_what_an_error_says_makes_it_run() -> None:
    def make(wrap: Any) -> Any:
        return trained(layers(4), wrap)

    memory = memory_of("1 GiB")
    limit, said = int(0.95 * memory.least(Loop(make, memory.compile).step)), 0
    for _ in range(3):
        memory = memory_of(limit)
        loop = Loop(make, memory.compile)
        try:
            loop.run(5)
            break
        except Exception as error:  # the compiler wraps it
            text = str(error)
            found = re.search(r"pass memory=(\d+)", text)
            assert found or "TrainingMemory.least(step)" in text
            if found:
                limit = int(found[1])
            else:
                memory = memory_of("1 GiB")
                limit = memory.least(Loop(make, memory.compile).step)
            said += 1
    assert said == 1
    assert loop.losses == Loop(make).run(5).losses


def test_the_bound_of_a_plan_falls_as_the_limit_rises() -> None:
    bounds = []
    for part in (0.75, 0.85, 0.95):
        memory = check(lambda wrap: trained(layers(4), wrap), part, margin=0)
        assert memory.reports[-1].bound is not None
        bounds.append(memory.reports[-1].bound)
    assert bounds == sorted(bounds, reverse=True)


def test_a_plan_without_a_bound_is_reported_as_one() -> None:
    """The plans of the first steps recompute much, and nothing is known of how little would do."""
    memory = check(lambda wrap: trained(layers(4), wrap), 0.75, margin=0)
    first, *_, last = memory.reports
    assert (first.source, first.bound) == ("first steps", None)
    assert first.added_cost > 0
    lines = str(memory.report).splitlines()
    assert lines[1].endswith(" of its work added; no bound was computed")
    assert lines[-1].endswith(" of its work added")
    assert last.bound is not None


# ------------------------------------------------------------------------------------------ steps that are said


def test_steps_that_are_said() -> None:
    model = layers(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory = memory_of("1 GiB")
    run = memory.compile(model)
    for _ in range(4):
        with memory.step():
            run(torch.randn(64, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    with memory.step():  # without a graph
        torch.randn(8)
    assert memory.report.steps.count == memory.report.steps.checked == 5
    text = str(memory.report)
    assert re.match(r"5 steps, 5 of them checked by storages: the largest took [\d,]+ bytes of 1,073,741,824", text)
    assert "0.0% of its work added" in text
    with pytest.raises(UsageError, match="found a step inside of a step of the same memory"), memory.step(), memory.step():
        pass
    with memory.step():
        run(torch.randn(64, WIDTH))


def test_a_step_that_is_said_counts_what_runs_behind_its_optimizer() -> None:
    memory = memory_of(200_000)
    run = memory.compile(layers(2))

    def step() -> None:
        with memory.step():
            run(torch.randn(8, WIDTH)).sum().backward()
            torch.zeros(60_000)

    with pytest.raises(MemoryLimitError, match="the peak is between the graphs"):
        step()
    torch.zeros(60_000)


def test_two_models_and_a_thread_have_one_memory() -> None:
    memory = memory_of("1 GiB")
    one, other = memory.compile(layers(2)), memory.compile(layers(3))
    other(one(torch.randn(8, WIDTH))).sum().backward()
    assert len(memory.reports) == 2

    def work() -> None:
        one(torch.randn(8, WIDTH)).sum().backward()

    thread = threading.Thread(target=work)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thread.start()
        thread.join()
    assert [str(each.message).partition(":")[0] for each in caught if each.category is PlanningWarning] == [
        "a graph runs in another thread than the one that made its memory"
    ]


def test_bad_options_of_a_memory_say_so() -> None:
    for options, text in (
        ({"margin": -1}, "found a margin of -1"),
        ({"check_every": 0}, "check_every"),
        ({"hard": "yes"}, "hard"),
        ({"hard": True}, "found hard without CUDA"),
    ):
        if torch.cuda.is_available() and options == {"hard": True}:
            continue
        with pytest.raises(UsageError, match=text):
            TrainingMemory("1 GiB", **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="found a step with Inductor"):
        TrainingMemory("1 GiB", inductor=True).step()
    assert backend is TrainingMemory


# ------------------------------------------------------------------------------------------ CUDA's allocator, without one


class Device:
    """An allocator that is told what it has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.live, self.peak, self.fraction = 100, 100, 1.0
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: self.live)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: self.peak)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: setattr(self, "peak", self.live))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=4000))
        monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda part, _: setattr(self, "fraction", part))


def test_on_cuda_the_allocator_is_read_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from stowplan.backends.torch.scopes import Scopes

    device = Device(monkeypatch)
    scopes = Scopes(package.partitioner(1000), hard=False)
    scopes.hard = True
    scopes._choose_meter((SimpleNamespace(),))
    tensor = torch.empty(0)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    scopes._choose_meter((tensor,))
    monkeypatch.undo()
    device = Device(monkeypatch)
    assert scopes.report.by == "allocator"
    for peak in (600, 900):
        with scopes.explicit():
            device.peak = peak
    assert (scopes.report.count, scopes.report.checked, scopes.report.largest) == (2, 2, 900)
    with pytest.raises(MemoryLimitError, match="a step took 1001 bytes, and the limit is 1000"), scopes.explicit():
        device.peak = 1001
    with (
        pytest.raises(MemoryLimitError, match=r"no memory left with 100 bytes live, and the limit is 1000 \(none\)"),
        scopes.explicit(),
    ):
        raise torch.OutOfMemoryError("none\nat all")
    scopes.meter.cap(1000)  # type: ignore[union-attr]
    assert device.fraction == 0.25


# ------------------------------------------------------------------------------------------ measuring, and torch's names


def test_measuring_counts_what_exists() -> None:
    model = layers(2)
    step, _ = trained(model, lambda model: model)
    optimizer = torch.optim.Adam(model.parameters())
    for each in model.parameters():
        each.grad = torch.zeros_like(each)
    optimizer.step()
    state = 2 * sum(each.nbytes for each in model.parameters())
    nothing = measure_peak(lambda: None, model)
    assert measure_peak(lambda: None, model, optimizer) >= nothing + state
    assert measure_peak(lambda: None, model, {"states": [optimizer.state]}) >= nothing + state
    assert measure_peak(lambda: None) >= nothing + state
    with pytest.raises(UsageError, match="found an argument of the type object"):
        measure_peak(step, object())


def test_one_module_alone_touches_names_that_torch_keeps_private() -> None:
    folder = Path(package.__file__).parent
    private = re.compile(r"torch(\.\w+)*\._(?!_)|from torch\.\S* import _|\._cdata|\._execution_engine")
    for path in folder.glob("*.py"):
        lines = [line for line in path.read_text().splitlines() if private.search(line) and "``" not in line]
        assert path.name == "private.py" or not lines, (path.name, lines)
