"""Joint graphs as problems: whose bytes values have, and what is known of operators."""

from __future__ import annotations

import operator
from typing import Any

import pytest

from stowplan.backends.fallback import UnsupportedError
from stowplan.backends.torch.reader import read
from stowplan.log import UnmodelledWarning
from stowplan.models.rematerialization.structure import build
from stowplan.models.rematerialization.verify import live_bytes
from tests.backends.torch.training import torch
from tests.frontends.graph.exported_programs import RandomModule


def traced(function: Any, *inputs: Any) -> Any:
    """A graph as AOTAutograd makes it, with values that are tensors without data."""
    from torch.fx.experimental.proxy_tensor import make_fx

    module = make_fx(function, tracing_mode="fake")(*inputs)
    for node in module.graph.nodes:
        if node.op == "output":
            results = node.args[0]
            node.args = (list(results) if isinstance(results, list | tuple) else [results],)
    module.graph.eliminate_dead_code()
    return module


def planned(module: Any) -> dict[str, int]:
    """Bytes at each operator in the order given."""
    (last,) = (node for node in module.graph.nodes if node.op == "output")
    found = read(module.graph, len(last.args[0]))
    plan = build(found.problem).made(range(len(found.nodes)))
    live = live_bytes(found.problem, plan)
    return {node.name: live[at] for at, node in enumerate(found.nodes) if node is not None}


def held(module: Any, inputs: tuple[Any, ...]) -> dict[str, int]:
    """Bytes of storages that a run holds at each node; inputs and results stay."""
    nodes = list(module.graph.nodes)
    last = {used: at for at, node in enumerate(nodes) for used in node.all_input_nodes}
    given = iter(inputs)
    live: dict[Any, Any] = {}
    stays, outside = set(), set()
    held_at = {}
    for at, node in enumerate(nodes):
        if node.op == "placeholder":
            live[node] = next(given)
            stays.add(node)
        elif node.op == "get_attr":
            live[node] = operator.attrgetter(node.target)(module)
            outside.add(live[node].untyped_storage()._cdata)
            stays.add(node)
        elif node.op == "call_function":
            args, keywords = torch.fx.node.map_arg((node.args, node.kwargs), live.__getitem__)
            live[node] = node.target(*args, **keywords)
            tensors = [each for each in torch.utils._pytree.tree_leaves(list(live.values())) if isinstance(each, torch.Tensor)]
            storages = {each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in tensors}
            held_at[node.name] = sum(size for key, size in storages.items() if key not in outside)
            live = {each: value for each, value in live.items() if last.get(each, at) > at or each in stays}
    return held_at


def random_graph(seed: int, steps: int) -> tuple[Any, tuple[Any, ...]]:
    """A graph, and what it is called with: the buffer is an input, too."""
    model = RandomModule(seed, steps, in_place=False)
    inputs = (*model.inputs(), model.state)
    return traced(lambda x, y, state: torch.func.functional_call(model, {"state": state}, (x, y)), *inputs), inputs


def check_random(seeds: range, steps: int) -> None:
    refused = 0
    for seed in seeds:
        module, inputs = random_graph(seed, steps)
        try:
            plan = planned(module)
        except UnsupportedError:
            # A kernel of torch wrote in place; graphs of AOTAutograd have none of those.
            refused += 1
            continue
        run = held(module, inputs)
        assert plan == {name: run[name] for name in plan}
    assert refused <= len(seeds) // 20


def test_random_graphs_hold_what_is_planned() -> None:
    check_random(range(40), 12)


@pytest.mark.slow
def test_many_random_graphs_hold_what_is_planned() -> None:
    check_random(range(100, 400), 25)


def graph_of(target: Any, shape: tuple[int, ...], *arguments: Any) -> Any:
    """A graph of one operator on the transpose of an input."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    graph = torch.fx.Graph()
    with FakeTensorMode() as mode:
        primal = graph.placeholder("primals_1")
        primal.meta["val"] = mode.from_tensor(torch.zeros(shape))
        turned = graph.call_function(torch.ops.aten.t.default, (primal,))
        turned.meta["val"] = primal.meta["val"].t()
        node = graph.call_function(target, (turned, *arguments))
        node.meta["val"] = target(turned.meta["val"], *arguments)
    graph.output([node])
    return graph


@pytest.mark.parametrize(
    ("target", "arguments", "size"),
    [
        (torch.ops.aten.reshape.default, ([64],), 256),
        (torch.ops.aten.contiguous.default, (), 256),
        (torch.ops.aten.to.dtype, (torch.float64,), 512),
        (torch.ops.aten.to.dtype, (torch.float32,), None),
        (torch.ops.aten.alias.default, (), None),
    ],
)
def test_views_by_schema_may_copy(target: Any, arguments: tuple[Any, ...], size: int | None) -> None:
    found = read(graph_of(target, (4, 16), *arguments), 1)
    written = [found.problem.tensors[each].size for op in found.problem.ops[:-1] for each in op.writes]
    assert written == ([] if size is None else [size])


def test_custom_operators_are_warned_of_and_branches_are_refused() -> None:
    with torch.library._scoped_library("stowplan_joint", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        library._register_fake("twice", torch.empty_like)
        graph = graph_of(torch.ops.stowplan_joint.twice.default, (4, 4))
        with pytest.warns(UnmodelledWarning, match=r"what stowplan_joint\.twice\.default allocates"):
            read(graph, 1)
    module = traced(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, [x]), torch.zeros(4))
    with pytest.raises(UnsupportedError, match="cond cannot be moved"):
        read(module.graph, 1)


def test_what_is_returned_does_not_run_again_after_the_border() -> None:
    """It stays; an operator that makes something else, too, may run again for that."""
    module = traced(lambda x: (x.exp(), *x.sum(0, keepdim=True).max(1)), torch.randn(3, 4))
    (last,) = (node for node in module.graph.nodes if node.op == "output")
    exp = next(node for node in module.graph.nodes if node.name.startswith("exp"))
    for count in (2, 3):
        found = read(module.graph, count)
        many = {first for first, second in found.problem.precedences if second == found.border}
        assert found.number[exp] in many
        assert len(many) == count - 1
    assert len(last.args[0]) == 3
