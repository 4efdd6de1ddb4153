"""Real models, exported with the planner, run in ExecuTorch's runtime, and compared with eager. Skipped without executorch."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("executorch") is None or importlib.util.find_spec("torch") is None:
    pytest.skip("needs executorch: pip install '.[executorch]'", allow_module_level=True)

import torch
from executorch.exir import ExecutorchBackendConfig, to_edge
from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, Verifier, greedy
from executorch.exir.passes import MemoryPlanningPass
from executorch.runtime import Runtime
from torch import Tensor, nn
from torch._higher_order_ops.map import map as torch_map

from stowplan.backends.executorch import MemoryPlanningAlgorithm, PlanningWarning, memory_planning_pass


class Branches(nn.Module):
    """Wired so that greedy wastes bytes on it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.sources = [[0], [0, 1], [1], [0, 2, 3], [3, 4], [2], [1, 5, 6], [4, 7], [3, 8], [6, 7, 9]]
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in self.sources)

    def forward(self, x: Tensor) -> Tensor:
        values = [self.stem(x)]
        for sources, conv in zip(self.sources, self.convs, strict=True):
            values.append(conv(torch.relu(torch.cat([values[at] for at in sources], 0).sum(0, keepdim=True))))
        return torch.cat([value.mean((2, 3)) for value in values[-3:]], 1)


class Views(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(16, 32), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x).view(-1, 16)
        return self.two(torch.relu(y).reshape(2, -1, 16)).flatten(1) + 1


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = state = torch.zeros(1, 8)
        every = []
        for step in range(8):
            hidden, state = self.cell(x[:, step], (hidden, state))
            every.append(hidden)
        return torch.stack(every, 1)


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        def large(y: Tensor) -> Tensor:
            return torch.cat([y, y * 2], 1).sum(1, keepdim=True) + torch.exp(y).sum(1, keepdim=True)

        def small(y: Tensor) -> Tensor:
            return (y * y - y).sum(1, keepdim=True)

        z = torch.cond(x.sum() > 0, large, small, (torch.relu(x) + 1,))
        return torch.cat([z, x * 3], 1) * 2


class Counter(nn.Module):
    """Keeps a state from one call to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4, 8))
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(torch.relu(self.layer(x)))
        return self.layer(self.total) * 2


class Results(nn.Module):
    """Results of branches that live together, are read through views, and are those of branches inside; loops over operands."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        def inner(y: Tensor) -> Tensor:
            return torch.cond(y[0, 0] > 0, lambda z: torch.exp(z) @ z.t() @ z, lambda z: z - 1, [y])

        def turn(row: Tensor, whole: Tensor) -> Tensor:
            return row + whole.view(8, 4).sum(1)

        one = torch.cond(x.sum() > 0, lambda y: inner(y) * 2, lambda y: self.layer(self.layer(y)), [x])
        other = torch.cond(x[0, 1] > 0, lambda y: y * 3, lambda y: torch.relu(y) @ y.t() @ y, [x])
        third = torch.cond(x[0, 2] > 0, lambda y, z: y + z, lambda y, z: y - z, [one, x])
        rows = torch_map(turn, other, third)
        return torch.tanh(one.view(-1)).view(4, 8) + torch.tanh(other.view(2, 16)).view(4, 8) + rows


CASES: list[tuple[Callable[[], nn.Module], tuple[int, ...]]] = [
    (Branches, (1, 3, 16, 16)),
    (Views, (4, 16)),
    (Recurrent, (1, 8, 8)),
    (Branching, (4, 8)),
    (Counter, (4, 8)),
]


def exported(model: nn.Module, *inputs: Tensor) -> Any:
    return to_edge(torch.export.export(model, inputs))


def planned(edge: Any, **options: Any) -> tuple[Any, Any]:
    """The program with our plan, and the planner."""
    memory_pass = memory_planning_pass(5.0, **options)
    (planner,) = memory_pass.memory_planning_algo.algo_list
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlanningWarning)
        return edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=memory_pass)), planner


def run(program: Any, *inputs: Tensor) -> list[Tensor]:
    found: list[Tensor] = Runtime.get().load_program(program.buffer).load_method("forward").execute(list(inputs))
    return found


def arena_sizes(program: Any) -> list[int]:
    (first, *_) = program.executorch_program.execution_plan
    return list(first.non_const_buffer_sizes)


@pytest.mark.parametrize(("make", "shape"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_programs_compute_what_eager_does(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    model, x = make().eval().requires_grad_(False), torch.randn(*shape)
    stock = exported(model, x).to_executorch()
    ours, planner = planned(exported(model, x))
    assert all(a <= b for a, b in zip(arena_sizes(ours), arena_sizes(stock), strict=True))
    assert planner.reports
    for sign in (1, -1):
        state = {key: value.clone() for key, value in model.state_dict().items()}
        expected = make().eval()
        expected.load_state_dict(state)
        with torch.no_grad():
            wanted = expected(sign * x)
        torch.testing.assert_close(run(ours, sign * x)[0], wanted, rtol=1e-5, atol=1e-5)
        assert torch.equal(run(ours, sign * x)[0], run(stock, sign * x)[0])


def test_results_of_branches() -> None:
    """Executorch's own plan is wrong here; the check says so, and ours is right whichever branches run."""
    torch.manual_seed(1)
    model = Results().eval().requires_grad_(False)
    inputs = [torch.randn(4, 8) for _ in range(12)]
    stock = exported(model, inputs[0]).to_executorch()
    with pytest.warns(PlanningWarning, match="executorch's own plan is wrong"):
        ours = exported(model, inputs[0]).to_executorch(ExecutorchBackendConfig(memory_planning_pass=memory_planning_pass(5.0)))
    program = torch.export.export(model, (inputs[0],)).module()
    expected = [program(x) for x in inputs]
    assert not all(torch.allclose(run(stock, x)[0], each, 1e-4, 1e-4) for x, each in zip(inputs, expected, strict=True))
    for x, each in zip(inputs, expected, strict=True):
        torch.testing.assert_close(run(ours, x)[0], each, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.filterwarnings("ignore::stowplan.backends.fallback.PlanningWarning")
def test_random_programs_of_branches_and_loops(seed: int) -> None:
    """Also in another order, with inputs and outputs of the caller, and in banks."""
    from executorch.exir.banked_memory_planning import Bank, TargetMemoryMap

    from stowplan.backends.executorch import plan
    from tests.backends.executorch.programs import RandomProgram

    model = RandomProgram(seed).eval()
    torch.manual_seed(seed)
    inputs = [torch.randn(4, 4) for _ in range(8)]
    edge = exported(model, inputs[0])
    callers: dict[str, Any] = {"alloc_graph_input": False, "alloc_graph_output": False} if seed % 2 else {}
    memory = TargetMemoryMap([Bank("fast", 512, 1), Bank("slow", 1 << 20, 2)])
    banked = memory_planning_pass(5.0, target=memory)
    programs = [
        plan(copy.deepcopy(edge), time_limit=2.0).program,
        copy.deepcopy(edge).to_executorch(ExecutorchBackendConfig(memory_planning_pass=memory_planning_pass(2.0, **callers))),
        edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=banked)),
    ]
    model.is_plain = True
    for x in inputs:
        for program in programs:
            torch.testing.assert_close(run(program, x), list(model(x)), rtol=1e-4, atol=1e-4)


def test_an_arena_gets_smaller() -> None:
    x = torch.randn(1, 3, 16, 16)
    ours, planner = planned(exported(Branches().eval(), x))
    (report,) = planner.reports
    assert report.size < report.greedy
    assert report.size == arena_sizes(ours)[1]
    assert report.is_proven


def test_the_framework_finds_no_fault() -> None:
    """Its check of shared storage runs for planners named greedy only, and where debug messages are on."""
    edge = exported(Branches().eval(), torch.randn(1, 3, 16, 16))
    calls = []

    class Checked(MemoryPlanningPass):  # type: ignore[misc]
        def run(self, graph_module: Any, graph_signature: Any = None) -> Any:
            result = super().run(graph_module, graph_signature)
            calls.append(Verifier(graph_module, True, True, True, graph_signature).verify_storage_reuse())
            return result

    suite = MemoryPlanningAlgorithmSuite([greedy, MemoryPlanningAlgorithm(5.0)])
    logging.getLogger().setLevel(logging.DEBUG)
    try:
        edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=Checked(memory_planning_algo=suite)))
    finally:
        logging.getLogger().setLevel(logging.WARNING)
    assert calls
    assert calls[0] > 0


@pytest.mark.parametrize("inputs", [True, False])
def test_inputs_and_outputs_of_the_caller(inputs: bool) -> None:
    model, x = Branches().eval(), torch.randn(1, 3, 16, 16)
    program, planner = planned(exported(model, x), alloc_graph_input=inputs, alloc_graph_output=False)
    assert planner.reports[0].size < planner.reports[0].greedy
    assert arena_sizes(program)[1] == planner.reports[0].size
    if inputs:
        with torch.no_grad():
            torch.testing.assert_close(run(program, x)[0], model(x))


def test_state_in_an_arena_of_its_own() -> None:
    x = torch.randn(4, 8)
    model = Counter().eval().requires_grad_(False)
    program, _ = planned(exported(model, x), share_mutable_buffers=True)
    assert len(arena_sizes(program)) == 3


def test_a_delegate_that_reads_beyond_its_tensors() -> None:
    """XNNPACK asks for 64 bytes on top of the arena."""
    xnnpack = pytest.importorskip("executorch.backends.xnnpack.partition.xnnpack_partitioner")
    from executorch.exir import to_edge_transform_and_lower

    model, x = Branches().eval(), torch.randn(1, 3, 16, 16)
    edge = to_edge_transform_and_lower(torch.export.export(model, (x,)), partitioner=[xnnpack.XnnpackPartitioner()])
    stock = edge.to_executorch()
    program, planner = planned(to_edge_transform_and_lower(
        torch.export.export(model, (x,)), partitioner=[xnnpack.XnnpackPartitioner()]
    ))  # fmt: skip
    assert arena_sizes(program)[1] <= arena_sizes(stock)[1]
    assert planner.reports[0].size % 16 == 0
    assert planner.reports[0].load_bound > 64
    with torch.no_grad():
        torch.testing.assert_close(run(program, x)[0], model(x), rtol=1e-4, atol=1e-4)


def test_banks() -> None:
    """Several arenas; results are eager's, and less traffic is in the slow one than with executorch's own planner."""
    from executorch.exir.banked_memory_planning import Bank, TargetMemoryMap

    torch.manual_seed(1)
    model, x = Branches().eval().requires_grad_(False), torch.randn(1, 3, 16, 16)
    memory = TargetMemoryMap([Bank("fast", 10 * 1024, 1), Bank("slow", 1 << 20, 2)])
    memory_pass = memory_planning_pass(5.0, target=memory)
    (planner,) = memory_pass.memory_planning_algo.algo_list
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlanningWarning)
        program = exported(model, x).to_executorch(ExecutorchBackendConfig(memory_planning_pass=memory_pass))
    (report,) = planner.reports
    assert report.stock_traffic is not None
    assert report.traffic["slow"] < report.stock_traffic["slow"]
    sizes = arena_sizes(program)
    assert len(sizes) == 3
    assert 0 < sizes[1] <= 10 * 1024
    torch.testing.assert_close(run(program, x)[0], model(x))


def test_arguments_of_the_pass_that_contradict_each_other() -> None:
    from executorch.exir.banked_memory_planning import Bank, TargetMemoryMap

    from stowplan.errors import UsageError

    with pytest.raises(UsageError, match="found costs without a target"):
        memory_planning_pass(costs={"fast": 1})
    with pytest.raises(UsageError, match="found share_mutable_buffers with banks"):
        memory_planning_pass(target=TargetMemoryMap([Bank("only", 64, 1)]), share_mutable_buffers=True)
    (planner,) = memory_planning_pass(3, seed=7, deterministic=True).memory_planning_algo.algo_list
    assert (planner.options.time_limit, planner.options.seed, planner.options.deterministic) == (3, 7, True)


def test_banks_that_executorch_cannot_fill() -> None:
    from executorch.exir.banked_memory_planning import Bank, BankPlacementError, TargetMemoryMap, banked_memory_planning_pass

    from stowplan.errors import InputError

    model, x = Branches().eval(), torch.randn(1, 3, 16, 16)
    _, planner = planned(exported(model, x))
    room = planner.reports[0].load_bound
    memory = TargetMemoryMap([Bank("only", room, 1)])
    stock = ExecutorchBackendConfig(memory_planning_pass=banked_memory_planning_pass(memory))
    edge = exported(model, x)
    with pytest.raises(BankPlacementError):
        edge.to_executorch(stock)
    program = exported(model, x).to_executorch(
        ExecutorchBackendConfig(memory_planning_pass=memory_planning_pass(target=memory))
    )
    assert arena_sizes(program)[1] <= room
    tight = memory_planning_pass(target=TargetMemoryMap([Bank("only", room // 2, 1)]))
    edge = exported(model, x)
    with pytest.raises(InputError, match="the banks do not hold the graph"):
        edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=tight))


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.ModuleList(nn.Conv2d(2, 16, 1) for _ in range(4))
        self.narrow = nn.ModuleList(nn.Conv2d(16, 1, 1) for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        begun = [torch.relu(layer(x)) for layer in self.wide]
        return tuple(layer(each) for layer, each in zip(self.narrow, begun, strict=True))


@pytest.mark.parametrize(
    ("make", "shape"),
    [(Towers, (1, 2, 8, 8)), (Branching, (4, 8)), (Counter, (4, 8))],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_one_call_for_order_and_offsets(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    """Results are stock's to the last bit, also where state is written over."""
    from stowplan.backends.executorch import plan

    torch.manual_seed(1)
    model, x = make().eval().requires_grad_(False), torch.randn(*shape)
    stock = exported(model, x).to_executorch()
    ours = plan(exported(model, x), time_limit=5.0)
    assert ours.orders
    assert sum(arena_sizes(ours.program)) <= sum(arena_sizes(stock))
    if make is Towers:
        assert ours.orders[0].moved
        assert sum(arena_sizes(ours.program)) < 0.6 * sum(arena_sizes(stock))
    runtime = Runtime.get()
    methods = [runtime.load_program(each.buffer).load_method("forward") for each in (stock, ours.program)]
    for sign in (1, -1, 1):
        one, other = (method.execute([sign * x]) for method in methods)
        assert all(torch.equal(first, second) for first, second in zip(one, other, strict=True))


class Shapes(nn.Module):
    """Views, copies for views that are results, what may be a view or a copy, and results of several parts."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y, z = torch.relu(x), torch.sigmoid(x)
        low, high = z.split(2)
        flat = y.view(32)
        double = y.t().contiguous().to(torch.float64) * 2
        values, at = torch.topk(y.transpose(0, 1).reshape(4, 8), 2, 1)
        return flat, (flat.unsqueeze(0) @ y.view(32, 1)) * values.sum(), double.to(torch.float32) + 1, low + high, at


@pytest.mark.parametrize(("make", "shape"), [(Shapes, (4, 8)), (Recurrent, (1, 8, 8))])
def test_the_peak_of_an_order_is_what_is_planned(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    from stowplan.backends.executorch import plan

    model, x = make().eval().requires_grad_(False), torch.randn(*shape)
    found = plan(exported(model, x), time_limit=5.0)
    assert found.orders[0].peak == found.arenas[0].load_bound == found.size
    wanted = model(x)
    torch.testing.assert_close(run(found.program, x), [wanted] if isinstance(wanted, Tensor) else list(wanted))


def test_settings_of_the_callers_pass_stay() -> None:
    from stowplan.backends.executorch import plan

    x = torch.randn(1, 2, 8, 8)
    given = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
    found = plan(exported(Towers().eval(), x), ExecutorchBackendConfig(memory_planning_pass=given), order=False, time_limit=5.0)
    whole = plan(exported(Towers().eval(), x), order=False, time_limit=5.0)
    assert not found.orders
    assert found.size == sum(arena_sizes(found.program)) <= whole.size
    assert found.arenas[0].buffers < whole.arenas[0].buffers
    assert type(given.memory_planning_algo.algo_list[0]).__name__ == "function"


def test_a_header_of_offsets(tmp_path: Path) -> None:
    from stowplan.backends.executorch import offset_table, write_offsets
    from stowplan.errors import UsageError

    program, planner = planned(exported(Branches().eval(), torch.randn(1, 3, 16, 16)))
    table = offset_table(program)
    assert len(table.rows) == planner.reports[0].buffers
    assert table.arenas[1].bytes == planner.reports[0].size
    assert all(row.offset + row.size <= table.arenas[row.arena].bytes for row in table.rows)
    for one, other in itertools.combinations(table.rows, 2):
        apart = one.offset + one.size <= other.offset or other.offset + other.size <= one.offset
        assert apart or one.end <= other.start or other.end <= one.start
    write_offsets(program, tmp_path / "branches.h")
    assert "#define BRANCHES_ARENA1_BYTES" in (tmp_path / "branches.h").read_text(encoding="utf-8")
    with pytest.raises(UsageError, match="c-header"):
        write_offsets(program, tmp_path / "branches.h", "pdf")
