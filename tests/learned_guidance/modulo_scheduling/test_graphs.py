"""Generated loop bodies, and collections of graphs read from folders."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from stowplan.errors import InputError
from stowplan.hardware.se import grid
from stowplan.learned_guidance.modulo_scheduling.collection import Collection, read_collection, shape_digest
from stowplan.learned_guidance.modulo_scheduling.graphs import generated, random_graph
from stowplan.models.modulo_scheduling.bounds import find_obstacle
from stowplan.models.modulo_scheduling.problem import Problem, Rules
from stowplan.models.modulo_scheduling.structure import Structure
from tests.models.modulo_scheduling.cases import graph
from tests.paths import EXAMPLES


def test_generated_graphs_are_like_real_ones() -> None:
    """Edges, sources, fan-out and cycles are within the range of the suites; no graph has an obstacle."""
    chance = np.random.default_rng(0)
    problems = [generated(chance) for _ in range(150)]
    assert all(find_obstacle(problem) is None for problem in problems)
    counts = np.array([len(problem.instructions) for problem in problems])
    assert counts.min() < 10 < 40 < counts.max()
    assert 1.0 < np.mean([len(problem.edges) / len(problem.instructions) for problem in problems]) < 1.3
    structures = [Structure(problem) for problem in problems]
    assert 0.1 < np.mean([len(each.sources) / each.count for each in structures]) < 0.35
    assert 0.2 < np.mean([bool(each.recurrent) for each in structures]) < 0.5
    assert 0.3 < np.mean([bool(problem.variables) for problem in problems]) < 0.7
    assert len({problem.digest for problem in problems}) == len(problems)


def test_generated_graphs_are_the_same_for_the_same_generator() -> None:
    one, two = (generated(np.random.default_rng(7), grid(3, 3), instructions=20, rules=Rules(max_delay=1)) for _ in range(2))
    assert one.digest == two.digest
    assert (one.machine.tiles, one.rules.max_delay) == (9, 1)
    assert len(random_graph(np.random.default_rng(1), 30).instructions) == 30


def test_variables_can_be_asked_for() -> None:
    chance = np.random.default_rng(0)
    assert not any(generated(chance, instructions=12, variables=False).variables for _ in range(10))
    assert all(random_graph(chance, 12, variables=True).variables for _ in range(10))


def test_what_cannot_be_mapped_is_refused() -> None:
    with pytest.raises(InputError, match="found no graph of 60 to 60 instructions that can be mapped; of the last one"):
        generated(np.random.default_rng(0), msgspec.structs.replace(grid(2, 2), spoke_depth=2), instructions=60)


def folder(path: Path) -> Path:
    """Two suites with one graph in common, under other names."""
    (path / "one").mkdir()
    (path / "two").mkdir()
    (path / "one" / "fir.json").write_bytes((EXAMPLES / "fir.dfg.json").read_bytes())
    (path / "one" / "chain.dot").write_text("digraph { a [op=add]; b [op=add]; c [op=mul]; a -> b; b -> c }")
    (path / "two" / "same.dot").write_text("digraph { x [op=sub]; y [op=mul]; z [op=add]; z -> x; x -> y }")
    (path / "two" / "fork.dot").write_text("digraph { x [op=sub]; y [op=mul]; z [op=add]; x -> y; x -> z }")
    return path


def test_a_suite_left_out(tmp_path: Path) -> None:
    collection = read_collection(folder(tmp_path))
    assert {name: [problem.name for problem in each] for name, each in collection.suites.items()} == {
        "one": ["chain", "fir"],
        "two": ["fork", "same"],
    }
    # The chain of the other suite is one of the graphs left out, so it is not trained on either.
    split = collection.without("two")
    assert [problem.name for problem in split.training] == ["fir"]
    assert [problem.name for problem in split.held_out] == ["fork", "same"]
    assert [each.suite for each in collection.splits()] == ["one", "two"]
    assert [len(each) for each in collection.at_most(3).suites.values()] == [1, 2]
    assert len(collection.problems) == 4
    with pytest.raises(InputError, match="found the suite 'three', expected one of one, two"):
        collection.without("three")


def test_inputs_and_the_cache(tmp_path: Path) -> None:
    path = folder(tmp_path)
    plain, again = read_collection(path / "one"), read_collection(path / "one")
    assert plain.problems[0] is again.problems[0]
    assert list(plain.suites) == ["one"]
    variables = read_collection(path / "one", "mesh-4x4", inputs="variables", rules=Rules(max_delay=0))
    assert len(variables.problems[-1].instructions) < len(plain.problems[-1].instructions)
    assert variables.problems[0].machine.name == "mesh-4x4"
    (path / "one" / "chain.dot").write_text("digraph { a [op=add]; b [op=add]; a -> b }")
    assert len(read_collection(path / "one").problems[0].instructions) == 2


def test_bad_folders_and_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found no graphs"):
        read_collection(tmp_path)
    (tmp_path / "bad.json").write_text('{"nodes": [{"id": "a", "op": "add"}], "edges": [{"src": "a", "dst": "b"}]}')
    with pytest.raises(InputError, match=r"bad\.json"):
        read_collection(tmp_path)


def test_digests_of_shapes() -> None:
    same = [graph("a>b b>c a>c"), graph("z>y x>z x>y"), graph("b>c a>c a>b")]
    other = [graph("a>b b>c a>c:1"), graph("a>b b>c"), graph("a>b a>c b>c b>d")]
    assert len({shape_digest(each) for each in same}) == 1
    assert len({shape_digest(each) for each in (*same, *other)}) == 4


def test_an_empty_suite_is_no_split() -> None:
    problems: dict[str, tuple[Problem, ...]] = {"one": (), "two": (graph("a>b"),)}
    assert [each.suite for each in Collection(problems).splits()] == ["two"]
