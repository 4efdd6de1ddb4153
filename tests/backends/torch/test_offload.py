"""Values kept, computed again, or sent to the host: limits of two pools, and eager's gradients."""

from __future__ import annotations

import contextlib
import random
import time
from functools import cache
from typing import Any

import msgspec
import pytest

from stowplan.backends.fallback import MemoryLimitError
from stowplan.backends.torch import backend, measure_peaks, memory_limit, stock
from stowplan.backends.torch.allowance import Allowance, PhaseLimit, footprint, tangent_bytes, with_reservations
from stowplan.backends.torch.devices import device
from stowplan.backends.torch.offload import with_sends_ended
from stowplan.backends.torch.planning import Chooser, Settings
from stowplan.errors import UsageError
from stowplan.models.rematerialization.plan import Move
from stowplan.models.rematerialization.structure import build
from stowplan.models.rematerialization.verify import verify
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


def dropouts() -> tuple[Any, Any]:
    """Nothing that its backward pass reads may be computed again."""
    return Loss(*(layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.Dropout(0.1)))), torch.randn(2048, 64)


MODELS = {"chain": chain, "transformer": transformer, "convolutions": convolutions}


def trained(name: str, part: float, costs: str = "h100", **options: Any) -> tuple[Any, Any, int]:
    """The report, the peaks of a step and the limit, a part of what eager takes; gradients are eager's to the bit."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, given = {**MODELS, "dropouts": dropouts}[name]()
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


def all_sent(reading: Any) -> Any:
    """The order given, with all that it saves on the host from its writer to the first who reads it in the backward pass."""
    structure = build(reading.problem)
    order = structure.order
    border = order.index(reading.border)
    moves = []
    for value in structure.movable:
        first = order.index(structure.writer[value])
        later = [order.index(op) for op in structure.readers[value] if order.index(op) > border]
        if later and first < border and structure.writer[value] not in reading.arrival:
            places = {"send": first + 1, "wait": border, "fetch": min(later)}
            moves += [Move(action, structure.tensor[value], before) for action, before in places.items()]  # type: ignore[arg-type]
    return structure.made(order, sorted(moves, key=lambda move: move.before))


@pytest.mark.parametrize("name", MODELS)
def test_all_that_is_saved_goes_to_the_host_and_comes_back(name: str) -> None:
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop

    from stowplan.backends.torch.halves import split
    from stowplan.backends.torch.offload import with_host
    from stowplan.backends.torch.partition import prepared
    from stowplan.backends.torch.reader import read
    from stowplan.backends.torch.seconds import RateCosts

    torch._dynamo.reset()
    torch.manual_seed(0)
    model, given = MODELS[name]()
    plans: list[Any] = []

    def partition(module: Any, joint_inputs: Any, **kwargs: Any) -> Any:
        module = prepared(module)
        reading = read(module.graph, kwargs["num_fwd_outputs"], cost_function=RateCosts(device("h100")))
        reading = with_host(reading, 64 << 20, 1e9)
        plans.append((reading.problem, all_sent(reading)))
        return split(module, reading, plans[-1][1], num_fwd_outputs=kwargs["num_fwd_outputs"])

    compiled = torch.compile(model, backend=aot_autograd(fw_compiler=boxed_nop, partition_fn=partition))
    state = {key: value.clone() for key, value in model.state_dict().items()}
    expected = gradients(model, lambda: model(given))
    model.load_state_dict(state)
    assert_same(gradients(model, lambda: compiled(given)), expected)
    peaks = measure_peaks(lambda: compiled(given).backward(), model, given)
    ((problem, plan),) = plans
    found = verify(problem, plan)
    assert found.ok, found.violations
    assert plan.moves
    assert 0 < peaks.host <= found.figures["host_peak"]
    assert peaks.device <= plan.peak


@pytest.mark.parametrize("name", MODELS)
def test_two_pools_stay_within_their_limits(name: str) -> None:
    alone, _, _ = trained(name, 0.65)
    report, peaks, limit = trained(name, 0.65, **HOST)
    assert peaks.device <= report.peak <= limit
    assert 0 < peaks.host <= report.host_bytes <= 64 << 20
    assert report.added_cost < alone.added_cost
    assert 0 <= report.stalled_seconds <= report.added_seconds


def test_a_limit_that_recomputing_does_not_reach() -> None:
    with pytest.raises(Exception, match="the least peak found is"):
        trained("dropouts", 0.6)
    report, peaks, limit = trained("dropouts", 0.6, **HOST)
    assert peaks.device <= report.peak <= limit
    assert 0 < peaks.host <= report.host_bytes


class Layer(nn.Sequential):
    """One whose code is not torch's own, which is never compiled by itself."""

    def forward(self, x: Any) -> Any:
        return super().forward(x)


class Classifier(nn.Module):
    """Layers, and a loss that is not compiled with them."""

    def __init__(self, dropout: float):
        super().__init__()
        parts = (lambda: nn.Linear(64, 64)), (lambda: nn.Dropout(dropout)), nn.Tanh
        self.layers = Layer(*(Layer(*(part() for _ in range(3) for part in parts)) for _ in range(6)))
        self.head = nn.Linear(64, 64)

    def forward(self, x: Any) -> Any:
        return nn.functional.cross_entropy(self.head(self.layers(x)), torch.arange(len(x)) % 64)


def classified(part: float, is_whole: bool, dropout: float = 0.0, **options: Any) -> tuple[Any, Any, int]:
    """As :func:`trained`, with the loss outside; the report is of the last graph that was planned."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, given = Classifier(dropout), torch.randn(2048, 64)
    expected = gradients(model, lambda: model(given))
    limit = int(part * measure_peaks(lambda: model(given).backward(), model, given).device)
    made: Any = backend(limit, time_limit=4.0, costs="h100", **options)
    for compiled in [model.layers] if is_whole else model.layers:
        compiled.compile(backend=made)
    for _ in range(4):
        assert_same(gradients(model, lambda: model(given)), expected)
    peaks = measure_peaks(lambda: model(given).backward(), model, given)
    return made.reports[-1], peaks, limit


@pytest.mark.parametrize("is_whole", [True, False])
def test_what_lives_beside_graphs_is_measured_with_a_host_too(is_whole: bool) -> None:
    alone, peaks, limit = classified(0.75, is_whole)
    assert peaks.device <= limit
    report, peaks, limit = classified(0.75, is_whole, **HOST)
    assert peaks.device <= report.peak <= limit
    assert 0 < peaks.host <= 64 << 20
    assert report.added_cost < alone.added_cost


@cache
def readings() -> tuple[Any, Any]:
    """The graph of :func:`chain`, without a host and with one."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop

    from stowplan.backends.torch.offload import with_host
    from stowplan.backends.torch.partition import prepared
    from stowplan.backends.torch.reader import read
    from stowplan.backends.torch.seconds import RateCosts

    torch._dynamo.reset()
    read_graphs: list[Any] = []

    def partition(module: Any, joint_inputs: Any, **kwargs: Any) -> Any:
        module = prepared(module)
        read_graphs.append(read(module.graph, kwargs["num_fwd_outputs"], cost_function=RateCosts(device("h100"))))
        return stock.partition(module, joint_inputs, kwargs)

    model, given = chain()
    torch.compile(model, backend=aot_autograd(fw_compiler=boxed_nop, partition_fn=partition))(given).backward()
    (reading,) = read_graphs
    return reading, with_host(reading, 4 << 20, 4e12)


@pytest.mark.parametrize("seed", range(12))
def test_plans_with_a_host_are_within_rooms_and_add_no_more_than_without(seed: int) -> None:
    alone, hosted = readings()
    chance = random.Random(seed)
    structure = build(alone.problem)
    given = footprint(alone, structure.made(structure.order))
    waiting = chance.choice([0, 0, 3])
    constant = alone.problem.tensors[0].size + tangent_bytes(alone)
    least = max(given.forward, given.backward) * chance.uniform(0.4, 1)
    most = int(least + waiting * (given.at_border - constant) * chance.uniform(0.3, 1))
    rows = [PhaseLimit(waiting, True, False, most), PhaseLimit(waiting, True, True, most - chance.randint(0, most // 8))]
    if seed % 3 == 0:
        rows.append(
            PhaseLimit(waiting + 1, False, False, int((waiting + 1) * (given.at_border - constant) * chance.uniform(0.4, 1)))
        )
    allowance = Allowance(most, constant, tuple(rows))

    def chosen(reading: Any, seconds: float) -> Any:
        settings = Settings(most, time_limit=seconds, workers=1)
        chooser = Chooser(
            with_reservations(reading, allowance), most, settings, None, lambda _: iter(()), 0.0, time.monotonic()
        )
        return chooser.choose(keep_stock=False)

    cost = None
    with contextlib.suppress(MemoryLimitError):
        cost = chosen(alone, 0.5).plan.objective
    try:
        choice = chosen(hosted, 2.0)
    except MemoryLimitError:
        assert cost is None
        return
    problem = msgspec.structs.replace(choice.reading.problem, limit=allowance.limit)
    assert verify(problem, msgspec.structs.replace(choice.plan, problem=problem.digest)).ok
    assert allowance.peak(footprint(choice.reading, choice.plan)) <= choice.report.peak <= allowance.limit
    assert (choice.report.bound or 0) <= choice.report.added_cost == choice.plan.objective
    assert cost is None or choice.plan.objective <= cost


def test_what_a_plan_keeps_is_what_is_there_when_its_pass_ends() -> None:
    """A copy on its way at the border is waited for there."""
    _, hosted = readings()
    plan = all_sent(hosted)
    border = plan.sequence.index(hosted.border)
    late = [
        Move("wait", move.tensor, border + 1) if (move.action, move.before) == ("wait", border) else move
        for move in plan.moves or ()
    ]
    unended = build(hosted.problem).made(plan.sequence, sorted(late, key=lambda move: move.before))
    assert footprint(hosted, unended).at_border > footprint(hosted, plan).at_border
    ended = with_sends_ended(hosted, unended)
    assert verify(hosted.problem, ended).ok
    assert footprint(hosted, ended) == footprint(hosted, plan)
    assert with_sends_ended(hosted, plan) == plan


def test_uses_of_one_layer_share_the_host() -> None:
    """Nothing that is saved can be computed again, and each use sends a sixth of the host's bytes at most."""
    with pytest.raises(Exception, match="proven: no plan is within it"):
        classified(0.7, False, 0.1, repeats=6, outside="1 MiB")
    report, peaks, limit = classified(0.7, False, 0.1, repeats=6, outside="1 MiB", **HOST | {"host": "8 MiB"})
    assert peaks.device <= limit
    assert 0 < peaks.host <= 8 << 20
    assert report.host_bytes <= 8 << 20


def test_a_step_that_takes_more_of_the_host_is_an_error() -> None:
    from stowplan.backends.torch import partitioner
    from stowplan.backends.torch.offload import send
    from stowplan.backends.torch.scopes import Scopes, State

    steps = Scopes(partitioner("1 GiB", costs="h100", **HOST | {"host": "1 MiB"}))
    steps._open(State.FORWARD)
    one, _ = send(torch.ones(1 << 18))
    one.add(0)
    steps.check()
    other, _ = send(torch.ones(1 << 18))
    other.add(0)
    with pytest.raises(MemoryLimitError, match="a step took 2097152 bytes on the host, and its limit is 1048576: say how many"):
        steps.check()


def test_copies_on_the_host_are_checked_if_cudas_allocator_is_the_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    from stowplan.backends.torch import measure, partitioner
    from stowplan.backends.torch.offload import send
    from stowplan.backends.torch.scopes import Scopes, State

    # Statistics of a device with nothing on it. The copies of other tests do not count.
    for name in ("memory_allocated", "max_memory_allocated", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 0)
    monkeypatch.setattr(measure, "_ON_HOST", {})
    steps = Scopes(partitioner("1 GiB", costs="h100", **HOST | {"host": "1 MiB"}))
    earlier, _ = send(torch.ones(1 << 17))
    steps.meter = meter = measure.Allocator(torch.device("cuda", 0))
    assert (meter.host_live, meter.host_peak) == (1 << 19, 1 << 19)
    del earlier
    assert (meter.host_live, meter.host_peak) == (0, 1 << 19)
    steps._open(State.FORWARD)
    one, _ = send(torch.ones(1 << 18))
    steps.check()
    other, _ = send(torch.ones(1))
    assert (meter.host_live, meter.host_peak) == (4 + (1 << 20),) * 2
    with pytest.raises(MemoryLimitError, match="a step took 1048580 bytes on the host, and its limit is 1048576: say how many"):
        steps.check()
    assert len(one) + len(other) == 1 + (1 << 18)


def test_larger_batches_are_planned_anew_or_refused() -> None:
    """A plan with copies is for sizes up to those that it was made for."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, given = chain()
    limit = int(0.65 * measure_peaks(lambda: model(given).backward(), model, given).device)
    made: Any = backend(limit, outside=0, time_limit=4.0, costs="h100", **HOST)
    compiled = torch.compile(model, backend=made, dynamic=True)
    for rows, plans in ((2048, 1), (1024, 1), (2304, 2)):
        batch = torch.randn(rows, 64)
        expected = gradients(model, lambda batch=batch: model(batch))
        assert_same(gradients(model, lambda batch=batch: compiled(batch)), expected)
        peaks = measure_peaks(lambda batch=batch: compiled(batch).backward(), model, batch)
        assert len(made.reports) == plans
        assert peaks.device <= limit
        assert 0 < peaks.host <= 64 << 20
    with pytest.raises(Exception, match="the least peak found is"):
        compiled(torch.randn(1 << 16, 64))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"host": "1 GiB"}, "found a host of 1073741824 bytes without its bandwidth"),
        ({"host": "1 GiB", "host_bandwidth": 0, "costs": "h100"}, "found a host_bandwidth of 0, expected more than 0"),
        ({"host": "1 GiB", "host_bandwidth": "0 GB/s", "costs": "h100"}, "found a host_bandwidth of 0, expected more than 0"),
        ({"host": "1 GiB", "host_bandwidth": "25 GB/s"}, "found a host with costs of flops, expected profile, or a device"),
        ({**HOST, "costs": "h100", "inductor": True}, "found a host with Inductor"),
    ],
)
def test_what_makes_no_sense_is_one_line(options: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error) as caught:
        backend("1 GiB", **options)
    assert "\n" not in str(caught.value)


def test_a_host_without_bytes_is_none() -> None:
    assert backend("1 GiB", host=0) is not None
    assert backend("1 GiB", host=0, host_bandwidth="25 GB/s") is not None


def test_inductor_alone_takes_no_host() -> None:
    with pytest.raises(UsageError, match="found a host with Inductor"), memory_limit("1 GiB", costs="h100", **HOST):
        pass
