"""The worked examples of docs/reference/certificates.md, as they stand there."""

from __future__ import annotations

from typing import Any

import pytest

from stowplan.certificates.checker.reading import UnprovenError
from stowplan.models.banked_packing import problem as banked
from stowplan.models.memory_mapping.problem import Piece, Problem, Step, Tensor, Use
from stowplan.models.modulo_scheduling import problem as loops
from stowplan.models.operator_order import problem as orders
from stowplan.models.packing import problem as packing
from tests.certificates.test_bounds import shown
from tests.models.memory_mapping.brute_force import optimum
from tests.models.modulo_scheduling.cases import line


def test_load() -> None:
    one = packing.Buffer(id="one", lower=0, upper=2, size=3)
    other = packing.Buffer(id="other", lower=1, upper=3, size=4)
    assert shown(packing.Problem(buffers=(one, other)), {"form": "load", "moment": 1}) == 7


def test_cut() -> None:
    problem = orders.Problem(
        tensors=(orders.Tensor(id="t", size=4), orders.Tensor(id="u", size=1)),
        ops=(orders.Op(id="a", writes=(0,)), orders.Op(id="b", reads=(0,), writes=(1,)), orders.Op(id="c", reads=(0, 1))),
    )
    assert shown(problem, {"form": "cut", "at": 1, "held": [[0, 2, 4]]}) == 5


def test_recurrence() -> None:
    u = loops.Instruction(id="u", op="add", operands=(loops.Operand(instruction="v", distance=1),))
    v = loops.Instruction(id="v", op="add", operands=(loops.Operand(instruction="u"),))
    problem = loops.Problem(instructions=(u, v), machine=line(latency=3, spoke_depth=8))
    assert shown(problem, {"form": "recurrence", "least": 6}) == 6_000_006


def test_a_count_of_no_slots_shows_nothing() -> None:
    problem = loops.Problem(instructions=(loops.Instruction(id="u", op="add"),), machine=line(latency=1))
    assert shown(problem, {"form": "resource", "tiles": [0, 1, 2, 3]}) == 1_000_001
    with pytest.raises(UnprovenError, match=r"proof\.tiles: there are none"):
        shown(problem, {"form": "resource", "tiles": []})
    # This machine has no interfaces to memory.
    with pytest.raises(UnprovenError, match=r"proof\.tiles: no interface to memory serves any of them"):
        shown(problem, {"form": "resource", "tiles": [0, 1, 2, 3], "requests": True})


def pair() -> Problem:
    step = Step("step", "add", 1, (Use(0, False, 6), Use(1, False, 6)), (Piece(0, (5, 5), (0, 0)),))
    tensors = tuple(Tensor(name, 6, 10**6, 10**6, is_input=True) for name in "ab")
    return Problem(name="pair", target="none", cost_model="none", capacity=10, steps=(step,), tensors=tensors, max_preloads=2)


def test_prices() -> None:
    proof: dict[str, Any] = {"form": "prices", "denominator": 6, "memory": [5], "access": [30, 30]}
    assert shown(pair(), proof) == 2
    cut = {"step": 0, "price": 15, "rounds": [{"divisor": 6, "turned": []}]}
    assert shown(pair(), proof | {"memory": [0], "cuts": [cut]}) == 5 == optimum(pair())


def test_prices_of_banks() -> None:
    buffers = tuple(banked.Buffer(id=str(size), lower=0, upper=1, size=size) for size in (4, 3))
    banks = (banked.Bank(name="near", capacity=5, cost=0), banked.Bank(name="far", capacity=9, cost=1))
    problem = banked.Problem(buffers=buffers, banks=banks)
    assert shown(problem, {"form": "prices", "denominator": 1, "memory": [{"memory": 0, "moment": 0, "price": 1}]}) == 2


def test_trees_of_banks() -> None:
    buffers = tuple(banked.Buffer(id=str(size), lower=0, upper=1, size=size) for size in (4, 3))
    banks = (banked.Bank(name="near", capacity=5, cost=0), banked.Bank(name="far", capacity=9, cost=1))
    problem = banked.Problem(buffers=buffers, banks=banks)
    one = {"form": "prices", "denominator": 1, "splits": [3]}
    both = {"form": "prices", "denominator": 1, "memory": [{"memory": 0, "moment": 0, "price": 2}], "splits": [4]}
    assert shown(problem, {"form": "tree", "nodes": [{"split": [[0, 0], [1, 0]], "most": 1}, one, both]}) == 3


def test_searches() -> None:
    problem = orders.Problem(
        tensors=tuple(orders.Tensor(id=name, size=size) for name, size in (("t", 3), ("u", 3), ("v", 2), ("w", 2))),
        ops=(
            orders.Op(id="a", writes=(0,)),
            orders.Op(id="b", writes=(1,)),
            orders.Op(id="c", reads=(0,), writes=(2,)),
            orders.Op(id="d", reads=(1,), writes=(3,)),
        ),
        outputs=(2, 3),
    )
    assert shown(problem, {"form": "search", "from": "start", "below": 7}) == 7
    u = loops.Instruction(id="u", op="add")
    v, w = (loops.Instruction(id=name, op="add", operands=(loops.Operand(instruction="u"),)) for name in "vw")
    machine = line(latency=1)
    found = shown(loops.Problem(instructions=(u, v, w), machine=machine), {"form": "search", "least": 1})
    assert found == 1_000_002
