"""Collections of graphs read from folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.lib.modulo_scheduling.collection import Collection, read_collection, shape_digest
from stowplan.errors import InputError
from stowplan.models.modulo_scheduling.problem import Problem, Rules
from tests.models.modulo_scheduling.cases import graph
from tests.paths import EXAMPLES


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
