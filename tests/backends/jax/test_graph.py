"""Plans on saved bytes, without jax: a graph as it was recorded of a small layer, and graphs by lot."""

from __future__ import annotations

import itertools
import random

import pytest

from stowplan.backends.jax.graph import Graph, Node, plan, plan_greedily, recomputed
from stowplan.backends.jax.policy import Policy

#: x @ w, its gelu, and a second product; each product's name, then what the backward pass reads.
LAYER = Graph(
    times=4,
    nodes=(
        Node(8.0),
        Node(0.0, (0,), "a", 100, ("dots", "dots_no_batch")),
        Node(1.0, (1,)),
        Node(0.0, (2,), "b", 100),
        Node(16.0, (3,)),
        Node(0.0, (4,), "c", 50, ("names", "dots")),
    ),
    needed=((1, 100), (3, 100), (5, 50)),
)


def test_what_is_made_again() -> None:
    assert recomputed([LAYER], ()).seconds == 4 * 25
    assert recomputed([LAYER], ("c",)) == (result := recomputed([LAYER], ("c", "unknown")))
    assert (result.seconds, result.bytes, result.saved) == (4 * 9, 200, ("c",))
    assert recomputed([LAYER], ("a", "b", "c")).seconds == 0
    assert LAYER.needed_bytes == 1000
    assert LAYER.named("dots") == ["a", "c"]


@pytest.mark.parametrize(("budget", "saved"), [(0, ()), (199, ()), (200, ("c",)), (600, ("a", "c")), (1000, ("a", "b", "c"))])
def test_plans(budget: int, saved: tuple[str, ...]) -> None:
    assert plan([LAYER], budget).saved == saved


@pytest.mark.parametrize("seed", range(12))
def test_plans_are_optimal(seed: int) -> None:
    chance = random.Random(seed)
    graphs = [_by_lot(chance, place) for place in range(2)]
    names = [node.name for graph in graphs for node in graph.nodes if node.name]
    budget = chance.randrange(1, sum(graph.times * node.bytes for graph in graphs for node in graph.nodes))
    sets = itertools.chain.from_iterable(itertools.combinations(names, size) for size in range(len(names) + 1))
    within = [result for chosen in sets if (result := recomputed(graphs, chosen)).bytes <= budget]
    least = min(result.seconds for result in within)
    found, greedy = plan(graphs, budget), plan_greedily(graphs, budget)
    assert found.bytes <= budget
    assert greedy.bytes <= budget
    assert found.seconds <= greedy.seconds
    # Ties of time are broken by bytes, which weigh a thousandth of all time.
    assert found.seconds <= least + 2e-3 * recomputed(graphs, ()).seconds


def _by_lot(chance: random.Random, place: int) -> Graph:
    nodes: list[Node] = []
    for number in range(5):
        names = [at for at, node in enumerate(nodes) if node.name]
        inputs = tuple(sorted(chance.sample(names, min(len(names), chance.randrange(3)))))
        nodes += [Node(chance.uniform(0.1, 9), inputs), Node(0.0, (len(nodes),), f"{place}.{number}", chance.randrange(1, 99))]
    needed = chance.sample(range(len(nodes)), 4)
    return Graph(chance.randrange(1, 5), tuple(nodes), tuple((number, nodes[number].bytes) for number in needed))


def test_policies_as_text() -> None:
    assert Policy("planned", ("a", "b")).text == "jax.checkpoint_policies.save_only_these_names('a', 'b')"
    assert Policy("everything_again").text == "jax.checkpoint_policies.nothing_saveable"
    assert "pinned_host" in Policy("offload_names", ("a",)).text
