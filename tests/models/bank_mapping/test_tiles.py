"""Tiles by brute force over whole tensors, against models and verifier on tiled problems.

Written from the rule of docs/reference/bank-mapping.md.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import pytest

import stowplan
from benchmarks.bank_mapping.programs import traffic
from stowplan.errors import InputError, UsageError
from stowplan.frontends.affine import Builder
from stowplan.hardware.affine.check import check
from stowplan.hardware.inferentia.problem import build_problem
from stowplan.hardware.inferentia.target import BankTarget, load_target
from stowplan.models.bank_mapping import cpsat
from stowplan.models.bank_mapping.plan import BankCopy, Plan
from stowplan.models.bank_mapping.problem import Problem, split
from stowplan.models.bank_mapping.structure import assemble
from stowplan.models.bank_mapping.verify import verify
from stowplan.portfolio.bank_mapping.choose import local_plan, propagated_plan
from stowplan.transforms.eliminate import eliminate
from tests.frontends.affine.execute import run
from tests.hardware.affine.cases import random_inputs, random_program
from tests.models.bank_mapping.cases import random_problem, solve_milp
from tests.models.bank_mapping.memcopies import insert_copies

SEEDS = 500
#: Problems with more choices than this are left out.
MOST = 4000

Rows = list[tuple[int, int, int]]


def rows_of(problem: Problem, tile_bytes: int) -> list[Rows]:
    """For each tensor, (first row, end, number of rows) of its tiles, as the page says."""
    found: list[Rows] = []
    for tensor in problem.tensors:
        long = [size for size in tensor.shape if size > 1]
        if tensor.bytes <= tile_bytes or not long:
            found.append([(0, 1, 1)])
            continue
        count = long[0]
        step = 1
        while (step + 1) * tensor.bytes <= tile_bytes * count:
            step += 1
        found.append([(first, min(first + step, count), count) for first in range(0, count, step)])
    return found


def part(size: int, rows: tuple[int, int, int]) -> int:
    first, end, count = rows
    return size * end // count - size * first // count


def costs(problem: Problem, tile_bytes: int, buffer: int) -> Iterator[int | None]:
    """Weighted bytes of every choice of options, own layouts and tiles on chip, or None where it does not fit.

    Of the original problem: nothing here knows of a problem of tiles.
    """
    tiles = rows_of(problem, tile_bytes)
    numbered = [(tensor, rows) for tensor, each in enumerate(tiles) for rows in each]
    users: list[list[int]] = [[] for _ in problem.tensors]
    for number, operator in enumerate(problem.operators):
        for tensor in {*operator.reads, *operator.writes}:
            users[tensor].append(number)
    for chosen in product(*(each.options for each in problem.operators)):
        written: dict[int, int] = {}
        wanted: list[set[int]] = [set() for _ in problem.tensors]
        agree = True
        for option, operator in zip(chosen, problem.operators, strict=True):
            for at, tensor in enumerate(operator.reads):
                wanted[tensor].add(option[at])
            for at, tensor in enumerate(operator.writes, len(operator.reads)):
                agree = agree and written.setdefault(tensor, option[at]) == option[at]
        if not agree:
            continue
        for stays in product((False, True), repeat=len(numbered)):
            load = [buffer] * len(problem.operators)
            total = 0
            for (tensor, rows), stay in zip(numbered, stays, strict=True):
                each = problem.tensors[tensor]
                if not users[tensor]:
                    continue
                size = part(each.bytes, rows)
                if stay:
                    # Of an input that is wanted in several layouts of its own, any may be its own.
                    own = written.get(tensor, next((one for one in wanted[tensor] if one < each.rank), None))
                    copies = sum(part(each.layout_bytes(one), rows) for one in wanted[tensor] if one != own)
                    for number in range(users[tensor][0], users[tensor][-1] + 1):
                        load[number] += size + copies
                    total += problem.copy_weight * copies
                    total += problem.off_chip_weight * size * (each.is_output or tensor not in written)
                    continue
                for operator in problem.operators:
                    for at, read in enumerate(operator.reads):
                        if read == tensor:
                            total += problem.off_chip_weight * part(operator.read_bytes[at], rows)
                total += problem.off_chip_weight * size * (tensor in written)
            yield total if max(load, default=0) <= problem.capacity else None


def cases() -> Iterator[tuple[Problem, int, int, list[int | None]]]:
    for seed in range(SEEDS):
        chance = random.Random(seed)
        problem = random_problem(seed, operators=3)
        tile, buffer = chance.choice([1, 3, 5, 8]), chance.choice([0, 2, 6])
        choices = 2 ** sum(map(len, rows_of(problem, tile)))
        for operator in problem.operators:
            choices *= len(operator.options)
        if choices <= MOST:
            yield problem, tile, buffer, list(costs(problem, tile, buffer))


@pytest.fixture(scope="module")
def solved() -> list[tuple[Problem, int, Problem, int | None]]:
    found = []
    for problem, tile, buffer, each in cases():
        best = min((cost for cost in each if cost is not None), default=None)
        found.append((problem, tile, split(problem, tile, buffer).problem, best))
    return found


@pytest.mark.slow
def test_there_are_many_and_tiles_matter(solved: list[tuple[Problem, int, Problem, int | None]]) -> None:
    assert len(solved) >= 200
    assert sum(len(tiled.tensors) > len(problem.tensors) for problem, _, tiled, _ in solved) >= 150
    better = 0
    for problem, _, tiled, best in solved:
        whole = cpsat.solve(msgspec.structs.replace(problem, capacity=tiled.capacity), time_limit=20)
        assert whole.plan is None or best is not None
        if whole.plan is not None and best is not None:
            assert best <= whole.plan.objective
            better += best < whole.plan.objective
    assert better >= 20


def test_exact_models_agree_with_brute_force(solved: list[tuple[Problem, int, Problem, int | None]]) -> None:
    for number, (_, _, tiled, best) in enumerate(solved):
        outcome = cpsat.solve(tiled, time_limit=20)
        if best is None:
            assert outcome.status == "infeasible", tiled.name
            continue
        assert outcome.status == "optimal"
        assert outcome.plan is not None
        assert verify(tiled, outcome.plan).ok
        assert outcome.plan.objective == outcome.bound == best, tiled.name
        if number % 4 == 0:
            _, plan, bound = solve_milp(tiled, "gscip")
            assert plan is not None
            assert bound is not None
            assert bound <= plan.objective == best, tiled.name


def test_the_verifier_sees_what_was_spoilt(solved: list[tuple[Problem, int, Problem, int | None]]) -> None:
    """Plans of tiles, changed at random: a changed plan passes only where another place for a tile costs what it says."""
    refused = 0
    for seed, (_, _, tiled, best) in enumerate(solved):
        if best is None:
            continue
        plan = cpsat.solve(tiled, time_limit=20).plan
        assert plan is not None
        for spoilt in mutations(plan, tiled, random.Random(seed)):
            found = verify(tiled, spoilt)
            if found.ok:
                # The same bytes by another way; never fewer than the best.
                assert spoilt.objective == plan.objective
                assert assemble(tiled, spoilt.options, spoilt.on_chip).objective == plan.objective
            else:
                refused += 1
    assert refused > 1000


def mutations(plan: Plan, problem: Problem, chance: random.Random) -> Iterator[Plan]:
    """One field of a plan changed, in every way that there is a field for."""
    changed = msgspec.structs.replace
    yield changed(plan, objective=plan.objective - 1)
    yield changed(plan, problem="0" * 64)
    for tensor in range(len(plan.on_chip)):
        stays = list(plan.on_chip)
        stays[tensor] = not stays[tensor]
        yield changed(plan, on_chip=tuple(stays))
        layouts = list(plan.layouts)
        layouts[tensor] = chance.randrange(-1, problem.tensors[tensor].rank + 1)
        if layouts[tensor] != plan.layouts[tensor] and plan.on_chip[tensor] and problem.writers[tensor]:
            yield changed(plan, layouts=tuple(layouts))
    for number in range(len(plan.copies)):
        yield changed(plan, copies=plan.copies[:number] + plan.copies[number + 1 :])
        yield changed(plan, copies=(*plan.copies, plan.copies[number]))
    if problem.tensors:
        yield changed(plan, copies=(*plan.copies, BankCopy(chance.randrange(len(problem.tensors)), 0, 99)))


def test_without_tiles_the_problem_is_as_it_was() -> None:
    for seed in range(20):
        problem = random_problem(seed)
        assert split(problem, None).problem == problem
        assert split(problem, 1 << 40).problem.digest == problem.digest


def test_all_bytes_are_in_some_tile() -> None:
    for seed in range(100):
        problem = random_problem(seed)
        tiled = split(problem, 3)
        for number, tensor in enumerate(problem.tensors):
            mine = [at for at, tile in enumerate(tiled.tiles) if tile.tensor == number]
            assert sum(tiled.problem.tensors[at].bytes for at in mine) == tensor.bytes
            for view in range(len(tensor.views)):
                assert sum(tiled.problem.tensors[at].views[view].bytes for at in mine) == tensor.views[view].bytes
        for before, after in zip(problem.operators, tiled.problem.operators, strict=True):
            assert sum(before.read_bytes) == sum(after.read_bytes)
            assert len(before.options) == len(after.options)


def tiled_target(tile: int, buffer: int = 1 << 10, capacity: int = 1 << 20) -> BankTarget:
    whole = load_target("inferentia-tiled")
    pad = msgspec.structs.replace(whole.scratchpad, capacity=capacity, tile=tile, stream_buffer=buffer)
    return msgspec.structs.replace(whole, scratchpad=pad)


def test_memcopies_of_tiles_change_no_result() -> None:
    copies = 0
    for seed in range(40):
        program, _ = eliminate(random_program(seed, moves=6))
        made = build_problem(program, tiled_target(40))
        for plan in (local_plan(made.problem), propagated_plan(made.problem)):
            assert verify(made.problem, plan).ok
            longer = insert_copies(made, plan)
            check(longer)
            inputs = random_inputs(program, seed)
            one, two = run(program, inputs), run(longer, inputs)
            assert all(np.array_equal(one[name], two[name]) for name in program.outputs)
            assert len(longer.statements) == len(program.statements) + len(plan.copies)
            copies += sum(made.tiles[copy.tensor].dimension is not None for copy in plan.copies)
    b = Builder("b")
    x = b.elementwise("tanh", b.input("x", (8, 24)))
    y = b.elementwise("tanh", b.slice(x, (0, 3), (8, 13), (1, 2)))
    z = b.matmul(x, b.transpose(b.elementwise("negate", x), (1, 0)))
    made = build_problem(eliminate(b.build(y, z))[0], tiled_target(200))
    plan = local_plan(made.problem)
    for each in made.problem.operators:
        assert len(each.reads) == len(made.accesses[made.problem.operators.index(each)])
    # Everything on chip, and every option the last one: views and layouts of tiles are copied.
    options = [len(each.options) - 1 for each in made.problem.operators]
    options[0] = 0
    plan = assemble(made.problem, options, [True] * len(made.problem.tensors))
    longer = insert_copies(made, plan)
    check(longer)
    inputs = random_inputs(made.program)
    one, two = run(made.program, inputs), run(longer, inputs)
    assert all(np.array_equal(one[name], two[name]) for name in made.program.outputs)
    assert copies + len(plan.copies) >= 10


def test_traffic_is_the_same_where_nothing_stays() -> None:
    program, _ = eliminate(random_program(5, moves=6))
    whole, tiled = (build_problem(program, target) for target in (load_target("inferentia"), tiled_target(16)))
    assert len(tiled.problem.tensors) > len(whole.problem.tensors)
    nowhere = [assemble(each.problem, [0] * len(each.problem.operators), [False] * len(each.names)) for each in (whole, tiled)]
    assert traffic(whole, nowhere[0]) == traffic(tiled, nowhere[1])


def test_a_matrix_larger_than_the_scratchpad_stays_in_part() -> None:
    b = Builder("large")
    x = b.elementwise("tanh", b.input("x", (64, 64)))
    program = b.build(b.elementwise("add", b.elementwise("exp", x), x))
    whole = build_problem(
        program,
        msgspec.structs.replace(tiled_target(1, 1, 10_000), scratchpad=load_target("inferentia").scratchpad),
        capacity=10_000,
    )
    tiled = build_problem(program, tiled_target(1024, 1808, 10_000))
    assert tiled.problem.capacity == 10_000 - 1808
    found = [stowplan.solve(each.problem, time_limit=20, workers=1) for each in (whole, tiled)]
    assert [each.status for each in found] == ["optimal", "optimal"]
    # Whole: x is loaded, tanh and exp are stored and loaded, tanh twice, the sum is stored: 7 of 16 KiB. Tiled: 8 tiles of
    # 1 KiB fit, and each of tanh that stays saves its store and two loads.
    assert found[0].objective == 7 * 16384
    assert found[1].objective == 7 * 16384 - 8 * 3072


GRAPH = """HloModule little

ENTRY main {
  x = f32[64,64]{1,0} parameter(0)
  at = s32[64]{0} parameter(1)
  v = bf16[64,64]{1,0} parameter(2)
  w = f32[64,64]{1,0} convert(v)
  y = f32[64,64]{1,0} add(x, w)
  n = f32[64]{0} convert(at)
  b = f32[64,64]{1,0} broadcast(n), dimensions={0}
  ROOT z = f32[64,64]{1,0} add(y, b)
}
"""


def test_precision(tmp_path: Path) -> None:
    graph = tmp_path / "graph.hlo.txt"
    graph.write_text(GRAPH)

    def sizes(precision: str | None) -> dict[str, int]:
        problem = stowplan.read(graph, target="inferentia", precision=precision)
        return {tensor.name: tensor.bytes for tensor in problem.tensors}

    own = sizes(None)
    assert own == {"x": 16384, "at": 256, "v": 8192, "w": 16384, "y": 16384, "n": 256, "z": 16384}
    for precision, item in (("bf16", 2), ("fp16", 2), ("int8", 1)):
        # Whole numbers stay as they are.
        assert sizes(precision) == {**dict.fromkeys(own, 4096 * item), "at": 256, "n": 64 * item}
    with pytest.raises(UsageError, match="found precision 'fp8', expected one of fp16, bf16, int8"):
        sizes("fp8")


def test_precision_of_onnx(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from stowplan.frontends.affine.onnx_graph import read_affine_onnx

    kinds = onnx.TensorProto
    made = onnx.helper.make_graph(
        [onnx.helper.make_node("Gather", ["table", "at"], ["rows"]), onnx.helper.make_node("Relu", ["rows"], ["out"])],
        "g",
        [
            onnx.helper.make_tensor_value_info("table", kinds.FLOAT, (100, 8)),
            onnx.helper.make_tensor_value_info("at", kinds.INT64, (4,)),
        ],
        [onnx.helper.make_tensor_value_info("out", kinds.FLOAT, (4, 8))],
    )
    path = tmp_path / "m.onnx"
    onnx.save(onnx.helper.make_model(made), path)
    for given, item in ((None, 4), (2, 2), (1, 1)):
        program = read_affine_onnx(path, given)
        assert {name: each.item_bytes for name, each in program.tensors.items()} == {
            "table": item,
            "at": 8,
            "rows": item,
            "out": item,
        }


def test_sizes_that_make_no_sense() -> None:
    problem = random_problem(0)
    with pytest.raises(InputError, match="tile: found 0 bytes"):
        split(problem, 0)
    with pytest.raises(InputError, match="stream_buffer: found 1000000 bytes, expected at most the capacity"):
        split(problem, 8, 1_000_000)
