"""The pass that orders operators, on graphs of torch.export: results stay the same, what writes over others keeps its place."""

from __future__ import annotations

import random
from typing import Any

import pytest

from stowplan.backends.executorch.reorder import GraphReader, ReorderPass
from stowplan.backends.fallback import PlanningWarning
from stowplan.errors import UsageError
from stowplan.kernel.solve import solve
from stowplan.models.operator_order.verify import verify
from stowplan.portfolio.operator_order.kind import KIND
from tests.patience import HANG

torch = pytest.importorskip("torch")
Tensor, nn = torch.Tensor, torch.nn


class Towers(nn.Module):
    """All towers are begun before the first is done."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.ModuleList(nn.Conv2d(2, 16, 1) for _ in range(4))
        self.narrow = nn.ModuleList(nn.Conv2d(16, 1, 1) for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        begun = [torch.relu(layer(x)) for layer in self.wide]
        return tuple(layer(each) for layer, each in zip(self.narrow, begun, strict=True))


class Parts(nn.Module):
    """Operators with several results."""

    def forward(self, x: Tensor) -> Tensor:
        ends = []
        for part in torch.split(x, 2, 1):
            large = torch.cat([part] * 8, 1)
            values, _ = torch.topk(large, 2, 1)
            ends.append(values)
        return torch.cat(ends, 1)


def graph_of(model: nn.Module, *inputs: Tensor) -> Any:
    return torch.export.export(model.eval(), inputs).run_decompositions({})


def run(program: Any, *inputs: Tensor) -> list[Tensor]:
    found = program.module()(*inputs)
    return list(found) if isinstance(found, tuple) else [found]


@pytest.mark.slow
def test_the_peak_gets_lower_and_results_stay_the_same() -> None:
    model, x = Towers(), torch.randn(1, 2, 8, 8)
    program = graph_of(model, x)
    expected = run(program, x)
    order = ReorderPass(HANG)
    assert order(program.graph_module).modified
    (report,) = order.reports
    assert report.moved
    assert report.is_proven
    # One wide tensor and its activation at a time, not four.
    assert report.given > report.peak
    assert report.peak < 3 * 16 * 8 * 8 * 4
    assert all(torch.equal(one, other) for one, other in zip(run(program, x), expected, strict=True))
    again = GraphReader(program.graph_module.graph).problem
    assert KIND.initial(again)["given"].objective == report.peak


def test_an_order_that_is_best_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    program = graph_of(nn.Sequential(nn.Conv2d(2, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1)), torch.randn(1, 2, 4, 4))
    names = [node.name for node in program.graph.nodes]
    order = ReorderPass(HANG)
    assert not order(program.graph_module).modified
    assert order.reports[0].is_proven
    assert [node.name for node in program.graph_module.graph.nodes] == names


def test_parts_of_results_follow_them() -> None:
    x = torch.randn(1, 8, 4)
    program = graph_of(Parts(), x)
    expected = run(program, x)
    reader = GraphReader(program.graph)
    found = solve(reader.problem, time_limit=HANG)
    assert verify(reader.problem, found.plan).ok
    reader.apply(found.plan.order)
    program.graph_module.recompile()
    assert torch.equal(run(program, x)[0], expected[0])


def test_every_order_that_is_allowed_computes_the_same() -> None:
    """Also the last of several writes over a buffer, and what reads it before and after."""
    graph = torch.fx.Graph()
    value = torch.zeros(4)

    def call(target: Any, *arguments: Any) -> Any:
        node = graph.call_function(target, arguments)
        node.meta["val"] = value
        return node

    x, state = graph.placeholder("x"), graph.placeholder("b_state")
    x.meta["val"] = state.meta["val"] = value
    before = call(torch.ops.aten.mul.Tensor, state, x)
    first = call(torch.ops.aten.copy_.default, state, before)
    between = call(torch.ops.aten.add.Tensor, state, x)
    doubled = call(torch.ops.aten.mul.Tensor, between, between)
    second = call(torch.ops.aten.copy_.default, state, doubled)
    after = call(torch.ops.aten.sub.Tensor, state, x)
    graph.output((first, second, after, before))
    pairs = set(GraphReader(graph).problem.precedences)
    # 0 reads, 1 writes, 2 reads, 4 writes, 5 reads.
    assert {(0, 1), (1, 2), (2, 4), (4, 5)} <= pairs
    assert (5, 1) not in pairs


class Random(nn.Module):
    """Views, what may be one or a copy, parts, and writes over all of them."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.register_buffer("state", torch.ones(4, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        chance = random.Random(self.seed)
        values = [x * 1.0, self.state * 2.0]
        for step in range(14):
            one, other = chance.choice(values), chance.choice(values)
            made = {
                "view": lambda one=one: one.unsqueeze(0).squeeze(0),
                "t": lambda one=one: one.t(),
                "contiguous": lambda one=one: one.t().contiguous(),
                "reshape": lambda one=one: one.t().reshape(2, 8).reshape(4, 4),
                "to": lambda one=one: one.to(torch.float64).to(torch.float32),
                "same": lambda one=one: one.to(torch.float32),
                "parts": lambda one=one: torch.cat(list(one.split(2))[::-1]),
                "add": lambda one=one, other=other, step=step: one + other * step,
            }[chance.choice(["view", "t", "contiguous", "reshape", "to", "same", "parts", "add", "add"])]
            values.append(made() if chance.random() < 0.7 or not one.is_contiguous() else one.reshape(16).add_(1.5).view(4, 4))
            if chance.random() < 0.3:
                values[-1].mul_(0.5)
        return tuple(value + 0.0 for value in values[-4:])


@pytest.mark.parametrize("seed", range(12))
def test_orders_that_are_allowed_keep_views_and_what_writes_over_them(seed: int) -> None:
    x = torch.arange(16.0).view(4, 4)
    expected = Random(seed)(x.clone())
    program = torch.export.export(Random(seed), (x,))
    reader = GraphReader(program.graph_module.graph)
    chance = random.Random(seed)
    for _ in range(4):
        left, order = set(range(len(reader.problem.ops))), []
        while left:
            waiting = {later for earlier, later in reader.problem.precedences if earlier in left}
            order.append(chance.choice(sorted(left - waiting)))
            left.remove(order[-1])
        reader.apply(tuple(order))
        program.graph_module.recompile()
        assert all(torch.equal(*pair) for pair in zip(program.module()(x.clone()), expected, strict=True))


@pytest.mark.parametrize(
    ("function", "copies"),
    [
        (lambda x: x.view(16), 0),
        (lambda x: x.t(), 0),
        (lambda x: x.t().contiguous(), 1),
        (lambda x: x.transpose(0, 1).reshape(16), 1),
        (lambda x: x.to(torch.float32), 0),
        (lambda x: x.to(torch.float16), 0.5),
        (lambda x: x.add_(1), 0),
        (lambda x: list(x.split(2))[1], 0),
    ],
)
def test_only_copies_take_bytes(function: Any, copies: float) -> None:
    class Small(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = torch.relu(x)
            return function(y), y

    problem = GraphReader(torch.export.export(Small(), (torch.zeros(4, 4),)).graph_module.graph).problem
    given = KIND.initial(problem)["given"]
    # The input is dead when a copy is made.
    assert given.objective == max(128, 64 + 64 * copies)


def test_copies_for_views_are_views_unless_they_are_results() -> None:
    graph, value = torch.fx.Graph(), torch.zeros(4, 4)

    def call(target: Any, *arguments: Any) -> Any:
        node = graph.call_function(target, arguments)
        node.meta["val"] = value
        return node

    x = graph.placeholder("x")
    x.meta["val"] = value
    inner = call(torch.ops.aten.view_copy.default, x, [4, 4])
    graph.output((call(torch.ops.aten.view_copy.default, inner, [4, 4]), call(torch.ops.aten.mul.Tensor, inner, inner)))
    problem = GraphReader(graph).problem
    assert [tensor.alias_of for tensor in problem.tensors] == [None, 0, None, None]


def test_random_numbers_are_drawn_in_turn() -> None:
    class Draws(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.rand_like(x) + torch.rand_like(x) * x

    problem = GraphReader(graph_of(Draws(), torch.zeros(3)).graph).problem
    draws = [number for number, op in enumerate(problem.ops) if "rand" in op.kind]
    assert tuple(draws) in problem.precedences


def test_weights_are_no_tensors() -> None:
    problem = GraphReader(graph_of(Towers(), torch.randn(1, 2, 8, 8)).graph).problem
    assert len(problem.inputs) == 1
    assert len(problem.outputs) == 4
    assert {each.alignment for each in problem.tensors} == {16}


def test_a_shape_that_is_not_static_keeps_the_order() -> None:
    sizes = {"x": {0: torch.export.Dim("n", min=2, max=9)}}
    program = torch.export.export(nn.ReLU(), (torch.randn(4, 3),), dynamic_shapes=({0: sizes["x"][0]},))
    order = ReorderPass(HANG)
    with pytest.warns(PlanningWarning, match="expected a static one.*: the operators keep their order"):
        assert not order(program.graph_module).modified
    assert not order.reports


def test_arguments_are_checked_at_once() -> None:
    with pytest.raises(UsageError, match="time limit"):
        ReorderPass(-1)
