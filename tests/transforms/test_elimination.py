"""Elimination: nothing that a program computes changes, every pair that can go is gone, and rules say what isl says."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stowplan.errors import MissingDependencyError
from stowplan.frontends.affine import Builder
from stowplan.hardware.affine.check import check
from stowplan.hardware.affine.program import Copy, Load, Piece, Program
from stowplan.transforms import compose
from stowplan.transforms.eliminate import Report, eliminate
from tests.frontends.affine.execute import run
from tests.hardware.affine.cases import MOVES, random_inputs, random_program


def same_results(one: Program, two: Program, seed: int = 0) -> bool:
    inputs = random_inputs(one, seed)
    first, second = run(one, inputs), run(two, inputs)
    return all(np.array_equal(first[name], second[name]) for name in one.outputs)


def compose_by_sets(load: Load, views: Mapping[str, Load]) -> Load:
    """As :func:`~stowplan.transforms.compose.compose`, by the integer set library."""
    if not any(piece.tensor in views for piece in load.pieces):
        return load
    found: list[Piece] = []
    for piece in load.pieces:
        view = None if piece.tensor is None else views.get(piece.tensor)
        if view is None:
            found.append(piece)
            continue
        read = compose.relation(load.extents, piece.index, piece.domain)
        for part in view.pieces:
            together = read.apply_range(compose.relation(view.extents, part.index, part.domain)).gist_domain(
                compose.box(load.extents)
            )
            found += [
                replace(part, index=indices, domain=domain) for indices, domain in compose.accesses(together, load.extents)
            ]
    return replace(load, pieces=compose.until_certain(found))


@contextmanager
def sets_alone() -> Iterator[None]:
    """Elimination with the integer set library alone, for compositions too."""
    pytest.importorskip("islpy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stowplan.transforms.eliminate.views.view_of", lambda writers, shape: None)
        patch.setattr("stowplan.transforms.eliminate.views.compose", compose_by_sets)
        yield


def checked(program: Program) -> tuple[Program, Report]:
    shorter, report = eliminate(program)
    check(shorter)
    assert same_results(program, shorter)
    return shorter, report


@pytest.mark.parametrize("engine", [nullcontext, sets_alone])
@pytest.mark.parametrize("name", list(MOVES))
def test_every_move_goes(name: str, engine: Callable[[], AbstractContextManager[None]]) -> None:
    for seed in range(6):
        chance = random.Random(seed)
        b = Builder(name)
        x = b.input("x", tuple(chance.randint(2, 6) for _ in range(chance.randint(2, 3))))
        program = b.build(b.elementwise("tanh", MOVES[name](b, x, chance)))
        with engine():
            shorter, report = checked(program)
        assert report.found >= 1
        assert report.eliminated == report.found
        assert not list(shorter.copies())
        assert list(shorter.tensors) == ["x", program.outputs[0]]


@settings(max_examples=150)
@given(st.integers(0, 10**9))
def test_compositions_keep_their_meaning(seed: int) -> None:
    program = random_program(seed)
    shorter, report = checked(program)
    assert report.eliminated == report.found
    assert not list(shorter.copies())
    assert report.set_calls == 0
    again, second = eliminate(shorter)
    assert second.found == 0
    assert again == shorter


@settings(max_examples=25)
@given(st.integers(0, 10**9))
def test_isl_alone_comes_to_the_same(seed: int) -> None:
    program = random_program(seed, moves=4, most_elements=80)
    with sets_alone():
        shorter, report = checked(program)
    assert report.eliminated == report.found
    by_rules, _ = eliminate(program)
    assert same_results(shorter, by_rules, seed)


@settings(max_examples=40)
@given(st.integers(0, 10**9))
def test_rules_reverse_stores_as_isl_does(seed: int) -> None:
    """The relation from tensor indices to what was copied there is one and the same set."""
    pytest.importorskip("islpy")
    program = random_program(seed, moves=3, most_elements=60)
    for copy in program.copies():
        shape = program.tensors[copy.store.tensor].shape
        reversed_store = compose.reverse_store(copy, shape)
        assert reversed_store is not None
        values, domain = reversed_store
        by_rules = compose.relation(shape, values, domain)
        by_isl = compose.relation(copy.extents, copy.store.index).reverse()
        assert by_rules.is_equal(by_isl), copy


def test_stores_beyond_the_rules_go_through_isl() -> None:
    pytest.importorskip("islpy")
    b = Builder("b")
    x = b.input("x", (3, 2))
    # 2 i + 3 j takes no value twice, but is no number in mixed radix; and the rest of the tensor is filled before.
    y = b.pad(b.reshape(x, (6,)), (0,), (2,), value=1.0)
    z = b.tensor((8,), "z")
    b.copy("fill", (8,), lambda i: y[i], z, lambda i: i)
    b.copy("skew", (3, 2), lambda i, j: x[i, j], z, lambda i, j: 2 * i + 3 * j)
    shorter, report = checked(b.build(b.elementwise("tanh", z)))
    assert report.set_calls == 1
    assert report.eliminated == report.found
    assert not list(shorter.copies())


def test_reasons() -> None:
    b = Builder("b")
    x = b.input("x", (4, 3))
    seen = b.transpose(x, (1, 0), name="seen")
    smeared = b.copy("smeared", (4, 3), lambda i, j: x[i, j], (4,), lambda i, j: i)
    table = b.reverse(x, (0,), name="table")
    rows = b.input("rows", (2,))
    looked_up = b.operator("gather", [table, rows], [(2, 3)], [(1, -1, 1)], dynamic=(0,))[0]
    program = b.build(seen, b.elementwise("tanh", seen), b.elementwise("tanh", smeared), looked_up)
    shorter, report = eliminate(program)
    assert report.found == 3
    assert report.eliminated == 0
    assert {each.name: each.reason for each in report.kept} == {
        "seen": "observable output",
        "smeared": "not invertible",
        "table": "not affine",
    }
    assert "gather" in report.summary()
    assert list(shorter.copies()) == list(program.copies())


def test_report_counts_bytes_and_kinds() -> None:
    b = Builder("b")
    x = b.input("x", (4, 3))
    y = b.transpose(x, (1, 0))
    z = b.reshape(y, (12,), name="out")
    _, report = eliminate(b.build(z, b.elementwise("tanh", z)))
    assert (report.found, report.eliminated) == (2, 1)
    assert (report.tensor_bytes, report.movement_bytes) == (48, 96)
    assert report.by_op() == {"transpose": (1, 1), "reshape": (0, 1)}
    assert report.tensors == ("transpose",)


def test_kept_copies_read_through_what_is_gone() -> None:
    b = Builder("b")
    x = b.input("x", (4, 3))
    z = b.reshape(b.transpose(x, (1, 0)), (12,), name="out")
    shorter, _ = checked(b.build(z))
    (copy,) = shorter.statements
    assert isinstance(copy, Copy)
    assert copy.load.tensors == ("x",)


def test_without_isl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "islpy", None)
    program = random_program(5)
    eliminate(program)
    monkeypatch.setattr("stowplan.transforms.eliminate.views.view_of", lambda writers, shape: None)
    with pytest.raises(MissingDependencyError, match=r"\.\[poly\]"):
        eliminate(program)


def test_long_chains_stay_short() -> None:
    b = Builder("chain")
    x = b.input("x", (8, 6))
    for _ in range(75):
        x = b.reshape(b.transpose(x, (1, 0)), (48,))
        x = b.transpose(b.reshape(x, (6, 8)), (1, 0))
    shorter, report = eliminate(b.build(b.elementwise("tanh", x)))
    assert report.eliminated == report.found
    assert len(shorter.statements) == 1


def test_shuffles_of_shuffles_are_kept_before_they_grow() -> None:
    b = Builder("shuffles")
    x = b.input("x", (8, 6))
    for _ in range(40):
        x = b.transpose(b.reshape(x, (6, 8)), (1, 0))
    program = b.build(b.elementwise("tanh", x))
    shorter, report = checked(program)
    assert report.eliminated > 70
    assert {each.reason for each in report.kept} == {"too long"}
    assert sum(1 for _ in shorter.copies()) == len(report.kept)
