"""Programs of torch.export: who shares bytes with whom, what is written over, what operators run graphs inside."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from stowplan.errors import InputError
from stowplan.frontends.graph.lowering import arena_problem
from stowplan.frontends.graph.torch_export import problem_of_exported
from stowplan.log import UnmodelledWarning
from stowplan.models.operator_order.problem import Problem
from stowplan.models.operator_order.structure import build, stable_order
from stowplan.models.packing.problem import Part
from tests.frontends.graph.exported_programs import RandomModule, held, returned, torch


class Function(torch.nn.Module):  # type: ignore[misc]
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def exported(function: Callable[..., Any], *inputs: Any) -> Any:
    return torch.export.export(Function(function), inputs)


def loaded(program: Any) -> Any:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


def profile(problem: Problem) -> dict[str, int]:
    """Bytes at each operator in the order given, where no result takes an operand's place."""
    plain = msgspec.structs.replace(problem, ops=tuple(msgspec.structs.replace(op, in_place=()) for op in problem.ops))
    structure = build(plain)
    order = stable_order(structure)
    assert order == list(range(len(order)))
    return dict(zip((op.id for op in problem.ops), structure.profile(order).tolist(), strict=False))


def aliases(problem: Problem) -> dict[str, str]:
    """Base of each view, by their names."""
    return {each.id: problem.tensors[each.alias_of].id for each in problem.tensors if each.alias_of is not None}


def check(program: Any, inputs: tuple[Any, ...]) -> Problem:
    """What is planned is what a run holds, at every operator; and its results are where those of a run are."""
    problem = problem_of_exported(program)
    counted, planned = held(program, inputs), profile(problem)
    assert planned == {name: counted[name] for name in planned}
    # What is no operator of the problem is a view of what is stored.
    assert max(planned.values(), default=0) == max(counted.values(), default=0)
    check_results(problem, returned(program, inputs))
    return problem


def check_results(problem: Problem, found: list[tuple[int | None, int, int]]) -> None:
    """Results share a buffer where they share a storage, at the same bytes; what is stored has none."""
    packed = arena_problem(problem)
    parts = {part.id: part for part in packed.parts or ()}
    own = {buffer.id: Part(id=buffer.id, buffer=buffer.id, size=buffer.size) for buffer in packed.buffers}
    buffers: dict[int, str | None] = {}
    assert len(packed.results or ()) == len(found)
    for name, (storage, start, end) in zip(packed.results or (), found, strict=True):
        part = (own | parts)[name]
        assert (part.buffer is None) == (storage is None)
        if storage is not None:
            assert buffers.setdefault(storage, part.buffer) == part.buffer
            assert part.offset == start
            # What an operator makes may be less than the storage that it has.
            assert part.offset + part.size >= end if name in own else part.offset + part.size == end
    assert len(set(buffers.values())) == len(buffers)


def random_program(seed: int, steps: int) -> Any:
    """None where torch cannot export it."""
    module = RandomModule(seed, steps)
    try:
        return torch.export.export(module, module.inputs())
    except RuntimeError:
        return None


def test_random_programs_hold_what_is_planned() -> None:
    programs = [random_program(seed, 12) for seed in range(30)]
    assert sum(program is not None for program in programs) > 25
    for program in filter(None, programs):
        check(program, RandomModule.inputs())


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(at, at + 50) for at in range(100, 350, 50)], ids=str)
def test_many_random_programs_hold_what_is_planned(seeds: range) -> None:
    for seed in seeds:
        program = random_program(seed, random.Random(seed).randrange(5, 25))
        if program is None:
            continue
        problem = check(program, RandomModule.inputs())
        again = loaded(program)
        assert check(again, RandomModule.inputs()).digest == problem.digest
        for table in ({}, None):
            try:
                functional = again.run_decompositions(table)
            except RuntimeError:
                continue
            check(functional, RandomModule.inputs())


@pytest.mark.parametrize("load", [False, True])
@pytest.mark.parametrize(
    ("function", "views", "peak"),
    [
        (lambda x: (x + x, x.t().contiguous()), {"t": "x"}, 3072),
        (lambda x: x.sin().transpose(0, 1).reshape(4, 64) * 2.0, {"transpose": "sin"}, 2048),
        (lambda x: (x.to(torch.float64).sum(), x.exp()), {}, 3080),
        (lambda x: (x.reshape(256) + 1, x * 2), {"reshape": "x"}, 3072),
        (lambda x: torch.dropout(x, 0.5, False).exp(), {"dropout": "x"}, 2048),
        # A row keeps the whole of what it is a row of.
        (lambda x: (x.sin()[0], x.cos()[0]), {"select": "sin", "select_1": "cos"}, 3072),
    ],
)
def test_views_are_those_of_a_run(function: Callable[..., Any], views: dict[str, str], peak: int, load: bool) -> None:
    program = exported(function, torch.zeros(16, 16))
    problem = problem_of_exported(loaded(program) if load else program)
    rename = {each.id: "x" for each in problem.tensors if problem.tensors.index(each) in problem.inputs}
    assert {view: rename.get(base, base) for view, base in aliases(problem).items()} == views
    assert max(profile(problem).values()) == peak


def test_who_touches_what_is_written_over_keeps_the_order() -> None:
    def function(x: Any) -> Any:
        y = x.sin()
        early, rows = y.cos(), y.t()
        y.add_(1)
        return early, rows.exp()

    problem = problem_of_exported(exported(function, torch.zeros(4, 4)))
    number = {op.id: at for at, op in enumerate(problem.ops)}
    assert {(number["cos"], number["add_"]), (number["add_"], number["exp"])} <= set(problem.precedences)
    assert aliases(problem) == {"t": "sin", "add_": "sin"}


def test_random_numbers_keep_the_order_and_numbers_come_before_who_needs_them() -> None:
    problem = problem_of_exported(exported(lambda x: x * x.sum().item() + torch.rand(4) - torch.rand(4), torch.zeros(4)))
    pairs = {(problem.ops[one].id, problem.ops[other].id) for one, other in problem.precedences}
    assert pairs == {("item", "mul"), ("rand", "rand_1")}


def test_inputs_that_are_written_over_stay() -> None:
    def function(x: Any) -> Any:
        x.add_(1)
        return x.sin()

    program = exported(function, torch.zeros(4))
    for each in (program, program.run_decompositions({})):
        problem = problem_of_exported(each)
        assert set(problem.inputs) <= set(problem.outputs)


@pytest.mark.parametrize(
    ("function", "may"),
    [
        (lambda y: y + 1, True),
        (lambda y: y.t() + 1, True),
        (lambda y: y + torch.ones(4, 4), True),
        # Who reads the same bytes elsewhere would find them written over.
        (lambda y: y + y.t(), False),
        (lambda y: y[:2] + 1, False),
        (lambda y: y.t() + torch.ones(4, 1), True),
        (lambda y: torch.ones(1, 4).expand(4, 4) + y.sum(), False),
    ],
)
def test_results_take_places_of_operands_that_lie_as_they_do(function: Callable[..., Any], may: bool) -> None:
    problem = problem_of_exported(exported(lambda x: function(x.mm(x)), torch.zeros(4, 4)))
    add = problem.ops[-1]
    assert [problem.tensors[problem.base[operand]].id == "mm" for operand, _ in add.in_place] == ([True] if may else [])


class Stored(torch.nn.Module):  # type: ignore[misc]
    """What it returns is of all sorts; what it writes over stands before that in its program."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8, 8))
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: Any, y: Any) -> Any:
        self.count.add_(1)
        y.mul_(2)
        made = x.sin()
        return made[1:3, ::2], x, self.weight.t()[2:], made, made.t(), x[3].expand(4, 16), self.weight, 3, None, y[::2], made


@pytest.mark.parametrize("functional", [False, True])
def test_results_of_all_sorts(functional: bool) -> None:
    inputs = (torch.ones(16, 16), torch.ones(8))
    program = loaded(torch.export.export(Stored(), inputs))
    program = program.run_decompositions() if functional else program
    problem = problem_of_exported(program)
    found = [(problem.base[each], problem.base_offset[each], problem.tensors[each].size) for each in problem.results]
    made, x, y = found[3][0], found[1][0], found[7][0]
    stored = [len(problem.tensors) - 2, len(problem.tensors) - 1]
    assert found[:7] == [
        (made, 64, 64 + 60),
        (x, 0, 1024),
        (stored[0], 0, 248),
        (made, 0, 1024),
        (made, 0, 1024),
        (x, 192, 64),
        (stored[1], 0, 256),
    ]
    assert found[7:] == [(y, 0, 28), (made, 0, 1024)]
    parts = {part.id: part.buffer for part in arena_problem(problem).parts or ()}
    assert [name for name, buffer in parts.items() if buffer is None] == [problem.tensors[each].id for each in stored]


def nested() -> dict[str, tuple[Callable[..., Any], int]]:
    """Operators that run graphs, and bytes that one needs beside its operands, its results included."""
    from torch._higher_order_ops.map import map as map_rows
    from torch._higher_order_ops.scan import scan
    from torch._higher_order_ops.while_loop import while_loop

    def branch(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda t: t.repeat(4, 1).sin().sum(0, keepdim=True), lambda t: t[:1] * 2, [x])

    def cut(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda t: t.repeat(4, 1).sin()[:1], lambda t: t[:1] * 2, [x])

    def loop(x: Any) -> Any:
        return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y.repeat(2, 1).sin()[:16]), (torch.tensor(0), x))

    return {
        "cond": (branch, 2 * 4096),
        # The branch's result keeps what it is cut of.
        "cond, cut": (cut, 2 * 4096),
        # Beside both of the body: the last iteration's values, and the number's two.
        "while_loop": (loop, 2048 + 2 * 2048 + 16),
        "map": (lambda x: map_rows(lambda row: row.sin().cos(), x), 2 * 1024),
        "scan": (lambda x: scan(lambda c, row: (c + row, (c * row).sin()), torch.zeros(16), x), 1024 + 4 * 64 + 256),
    }


@pytest.mark.parametrize("name", ["cond", "cond, cut", "while_loop", "map", "scan"])
def test_what_graphs_inside_need_counts(name: str) -> None:
    function, needed = nested()[name]
    program = loaded(exported(function, torch.zeros(16, 16)))
    problem = problem_of_exported(program)
    (op,) = (op for op in problem.ops if any(problem.tensors[each].id == f"{op.id}.scratch" for each in op.writes))
    assert sum(problem.tensors[each].size for each in op.writes) == needed
    if "cut" in name:
        assert problem.tensors[op.writes[0]].size == 4096


def test_what_is_inside_a_branch_of_a_loop_counts() -> None:
    from torch._higher_order_ops.while_loop import while_loop

    def body(i: Any, y: Any) -> Any:
        return i + 1, torch.cond(y.sum() > 0, lambda t: t.repeat(100, 1).sum(0), lambda t: t * 2, [y])

    problem = problem_of_exported(
        exported(lambda x: while_loop(lambda i, y: i < 3, body, (torch.tensor(0), x)), torch.zeros(16))
    )
    assert max(tensor.size for tensor in problem.tensors) >= 100 * 64


def test_graphs_that_run_once_stand_for_their_operators() -> None:
    def function(x: Any) -> Any:
        with torch.no_grad():
            y = x.sin().t()
        return y.contiguous(), x.cos()

    problem = problem_of_exported(loaded(exported(function, torch.zeros(4, 4))))
    assert [op.kind for op in problem.ops] == [f"aten.{each}.default" for each in ("sin", "t", "contiguous", "cos")]
    assert list(aliases(problem).values()) == [problem.ops[0].id]


def test_casts_of_autocast_are_warned_of() -> None:
    def function(x: Any) -> Any:
        with torch.autocast("cpu"):
            return x @ x

    with pytest.warns(UnmodelledWarning, match="lower precision"):
        problem = problem_of_exported(loaded(exported(function, torch.zeros(4, 4))))
    assert problem.tensors[-1].size == 32


def test_regions_that_are_compiled_once_run_as_often_as_they_stand() -> None:
    @torch.compiler.nested_compile_region  # type: ignore[untyped-decorator]
    def region(x: Any) -> Any:
        return x.sin().t().cos()

    problem = problem_of_exported(exported(lambda x: region(region(x)), torch.zeros(4, 4)))
    assert len(problem.ops) == 6
    assert [problem.tensors[each].size for each in problem.outputs] == [64]


def test_other_operators_that_run_graphs_are_refused() -> None:
    from torch._higher_order_ops.hints_wrap import hints_wrapper

    program = exported(lambda x: hints_wrapper(lambda y: y.sin(), (x,), {}, hints={}), torch.zeros(4))
    with pytest.raises(InputError, match="hints_wrapper: found the higher-order operator hints_wrapper, expected one"):
        problem_of_exported(program)


def test_custom_operators_are_warned_of() -> None:
    with torch.library._scoped_library("stowplan_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        library._register_fake("twice", torch.empty_like)
        program = exported(lambda x: torch.ops.stowplan_test.twice(x), torch.zeros(4))
        with pytest.warns(UnmodelledWarning, match=r"operator twice: what stowplan_test\.twice\.default allocates"):
            problem = problem_of_exported(program)
    assert [tensor.size for tensor in problem.tensors] == [16, 16]


def test_operators_that_run_as_several_are_named() -> None:
    attention = exported(lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x), torch.zeros(1, 2, 4, 8))
    with pytest.warns(UnmodelledWarning, match=r"scaled_dot_product_attention\S* may run as several operators"):
        problem_of_exported(attention)
