"""Data-movement elimination and bank mapping beside the figures of the Inferentia paper (section 3).

    python -m benchmarks.bank_mapping.programs wavenet     # elimination on Parallel WaveNet
    python -m benchmarks.bank_mapping.programs resnet50    # local against global bank mapping
    python -m benchmarks.bank_mapping.programs corpus      # every network: pairs, baselines, proof
    python -m benchmarks.bank_mapping.programs propagation # one pass of it against the fixed point
    python -m benchmarks.bank_mapping.programs large       # a graph of 10,000 operators

Each takes ``--precision`` and ``--target``, several of both where a table has a row for each.

The networks are those of the shared corpus, in ``../shared`` or where STOWPLAN_SHARED says.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from benchmarks.lib.places import SHARED
from stowplan.frontends.affine import PRECISIONS, Builder, read_graph
from stowplan.hardware.affine.program import Copy, Program
from stowplan.hardware.inferentia.problem import MappedProgram, build_problem
from stowplan.hardware.inferentia.target import load_target
from stowplan.kernel.solve import solve
from stowplan.models.bank_mapping.plan import Plan
from stowplan.models.bank_mapping.structure import assemble
from stowplan.models.bank_mapping.verify import verify
from stowplan.portfolio.bank_mapping import choose
from stowplan.portfolio.bank_mapping.choose import local_plan, propagated_plan
from stowplan.transforms.eliminate import Report, eliminate


@dataclass(frozen=True)
class Traffic:
    """Bytes."""

    on_chip: int
    """Loaded and stored by statements in the scratchpad, and copied between its banks (read and written)."""
    off_chip: int
    """Moved to and from main memory."""


def traffic(mapped: MappedProgram, plan: Plan) -> Traffic:
    """Traffic of a program under a plan of its problem.

    An operator stores every output once and loads what it needs of every operand once; what is in main memory passes through
    the scratchpad, so that it counts on both sides.
    """
    problem = mapped.problem
    on_chip = off_chip = 0
    loaded: set[int] = set()
    stored: set[int] = set()
    for statement, operator in zip(mapped.program.statements, problem.operators, strict=True):
        for tensor, size in zip(operator.reads, operator.read_bytes, strict=True):
            on_chip += size
            if not plan.on_chip[tensor]:
                off_chip += size
            elif problem.tensors[tensor].is_input and tensor not in loaded:
                loaded.add(tensor)
                off_chip += problem.tensors[tensor].bytes
        for name in statement.outputs:
            # Of a tensor in parts, each loop nest stores its own.
            written = mapped.program.tensors[name]
            on_chip += prod(statement.extents) * written.item_bytes if isinstance(statement, Copy) else written.bytes
        for tensor in operator.writes:
            if tensor not in stored and (problem.tensors[tensor].is_output or not plan.on_chip[tensor]):
                stored.add(tensor)
                off_chip += problem.tensors[tensor].bytes
    copied = sum(problem.tensors[copy.tensor].layout_bytes(copy.layout) for copy in plan.copies)
    return Traffic(on_chip + 2 * copied, off_chip)


def corpus() -> Path:
    return SHARED / "corpus"


def networks() -> Iterator[Path]:
    yield from sorted((corpus() / "unoptimized").glob("*.hlo.txt.gz"))
    yield from sorted((corpus() / "onnx").glob("*.onnx"))


def timed_elimination(program: Program) -> tuple[Program, Report, float]:
    began = time.perf_counter()
    shorter, report = eliminate(program)
    return shorter, report, time.perf_counter() - began


def mapped_on(program: Program, target: str) -> MappedProgram:
    return build_problem(program, load_target(target))


def bytes_moved(mapped: MappedProgram, plan: Plan) -> tuple[int, int]:
    verdict = verify(mapped.problem, plan)
    assert verdict.ok, verdict.violations[:3]
    return verdict.figures["copied_bytes"], verdict.figures["off_chip_bytes"]


def saved(before: float, after: float) -> str:
    return f"{(after - before) / before:+.1%}" if before else "0 before"


def table(*rows: Sequence[object]) -> None:
    """Markdown, the heads first; columns of numbers are not told from others."""
    heads, *rest = rows
    for row in (heads, ["---"] * len(heads), *rest):
        print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)


def label(precision: str | None, target: str) -> str:
    return f"{precision or 'as in the file'}, {target}"


def wavenet(given: argparse.Namespace) -> None:
    path = corpus() / "unoptimized" / "parallel_wavenet_inf_b2.hlo.txt.gz"
    program = read_graph(path)
    shorter, report, seconds = timed_elimination(program)
    print(f"Parallel WaveNet, batch 2, 6,400 samples: {len(program.statements)} statements, eliminated in {seconds:.2f} s\n")
    gone = bytes_by_operator(program, shorter)
    rows = ((op, f"{done} of {found}", f"{gone[op] / 1e6:.1f}") for op, (done, found) in report.by_op().items())
    table(("operator", "pairs eliminated", "MB of tensors"), *rows)
    for tensor in report.kept:
        print(f"\nkept {tensor.name} ({tensor.op}, {tensor.bytes:,} bytes): {tensor.reason}")
    print()
    rows = []
    for precision in given.precision:
        program = read_graph(path, precision)
        shorter, report, _ = timed_elimination(program)
        for target in given.target:
            mapped = [mapped_on(version, target) for version in (program, shorter)]
            before, after = (traffic(version, propagated_plan(version.problem)) for version in mapped)
            rows.append(
                (
                    label(precision, target),
                    f"{report.eliminated} of {report.found}",
                    f"{report.tensor_bytes / 1e6:.0f} of {report.movement_bytes / 1e6:.0f} MB",
                    saved(before.on_chip, after.on_chip),
                    saved(before.off_chip, after.off_chip),
                )
            )
    rows.append(("*paper*", "123 of 124", "145 of 146 MB", "-10%", "-11%"))
    table(("precision, target", "pairs eliminated", "tensors they wrote", "on-chip bytes", "off-chip bytes"), *rows)
    print("\nOn-chip bytes are all loads and stores in the scratchpad; the paper does not say over what it counts.")


def bytes_by_operator(program: Program, shorter: Program) -> Counter[str]:
    """Bytes of the tensors that are gone, by the operator that wrote them first."""
    gone = Counter[str]()
    seen = set(shorter.tensors)
    for statement in program.statements:
        for name in statement.outputs:
            if name not in seen:
                seen.add(name)
                gone[statement.op] += program.tensors[name].bytes
    return gone


def resnet50(given: argparse.Namespace) -> None:
    paths = (corpus() / "unoptimized" / "resnet50_inf_b1.hlo.txt.gz", corpus() / "onnx" / "resnet50_b1.stripped.onnx")
    rows = []
    for path in paths:
        for precision in given.precision:
            program, _, _ = timed_elimination(read_graph(path, precision))
            for target in given.target:
                mapped = mapped_on(program, target)
                result = solve(mapped.problem, time_limit=given.time_limit)
                plans = (local_plan(mapped.problem), propagated_plan(mapped.problem), result.plan)
                local, propagated, best = (bytes_moved(mapped, plan) for plan in plans)
                row = ["ONNX" if path.suffix == ".onnx" else "HLO", label(precision, target)]
                for at in (0, 1):
                    row.append(" → ".join(f"{plan_figures[at] / 1e6:.1f}" for plan_figures in (local, propagated, best)))
                    row.append(saved(local[at], propagated[at]))
                rows.append((*row, result.status))
    rows.append(("*paper*", "", "", "-76%", "", "-37%", ""))
    print(
        "ResNet-50, batch 1: MB under local mapping → propagation → the best plan; what propagation saves over local mapping\n"
    )
    table(("graph", "precision, target", "copied between banks", "", "moved off chip", "", "best plan"), *rows)


def every_network(given: argparse.Namespace) -> None:
    print("MB moved: copied between banks, and to and from main memory\n")
    heads = ("network", "pairs eliminated", "operators", "local", "propagation", "best", "gap", "status, s")
    for precision in given.precision:
        for target in given.target:
            print(f"{label(precision, target)}\n")
            table(heads)
            for path in networks():
                program, report, _ = timed_elimination(read_graph(path, precision))
                mapped = mapped_on(program, target)
                result = solve(mapped.problem, time_limit=given.time_limit)
                figures = (result.baselines["local"], result.baselines["propagation"], result.objective or 0)
                cells = (
                    path.name.split(".")[0] + (" (ONNX)" if path.suffix == ".onnx" else ""),
                    f"{report.eliminated} of {report.found}",
                    len(mapped.problem.operators),
                    *(f"{figure / 1e6:.1f}" for figure in figures),
                    f"{result.gap or 0:.2%}",
                    f"{result.status}, {result.seconds:.1f}",
                )
                print("| " + " | ".join(map(str, cells)) + " |", flush=True)
            print()


def propagation(given: argparse.Namespace) -> None:
    """One breadth-first pass against the fixed point."""
    for precision in given.precision:
        for target in given.target:
            print(f"{label(precision, target)}\n")
            rows = []
            for path in networks():
                program, _, _ = timed_elimination(read_graph(path, precision))
                problem = mapped_on(program, target).problem
                once, revised = choose.propagate_once(problem), choose.propagate(problem)
                figures = []
                for options in (once, revised):
                    everything = assemble(problem, options, [True] * len(problem.tensors))
                    conflicts = sum(problem.tensors[copy.tensor].layout_bytes(copy.layout) for copy in everything.copies)
                    moved = assemble(problem, options, choose.by_density(problem, options))
                    assert verify(problem, moved).ok
                    figures.append((f"{conflicts / 1e6:.1f}", f"{moved.objective / 1e6:.1f}"))
                changed = sum(one != two for one, two in zip(once, revised, strict=True))
                name = path.name.split(".")[0] + (" (ONNX)" if path.suffix == ".onnx" else "")
                rows.append((name, len(once), changed, *(each[at] for at in (0, 1) for each in figures)))
            heads = (
                "network",
                "operators",
                "revised",
                "in conflict, one pass",
                "fixed point",
                "moved, one pass",
                "fixed point",
            )
            table(heads, *rows)
            print()


def blocks(operators: int, seed: int = 0) -> Program:
    """Blocks of a projection, heads split and put together, a residual sum: half of all operators move data."""
    chance = random.Random(seed)
    b = Builder("large")
    x = b.input("x", (128, 256))
    while b.size < operators:
        width = chance.choice([64, 128, 256])
        weights = b.input("w", (256, 256))
        heads = b.transpose(b.reshape(b.matmul(x, weights), (128, 256 // width, width)), (1, 0, 2))
        parts = [b.elementwise("tanh", part) for part in b.split(heads, [1] * (256 // width), 0)] if width > 64 else [heads]
        joined = b.concatenate(parts, 0) if len(parts) > 1 else parts[0]
        flat = b.reshape(b.transpose(joined, (1, 0, 2)), (128, 256))
        bias = b.broadcast(b.input("b", (256,)), (128, 256), (1,))
        x = b.elementwise("add", b.elementwise("add", flat, bias), x)
    return b.build(x)


def large(given: argparse.Namespace, operators: int = 10_000) -> None:
    """What a graph of so many operators takes."""
    began = time.perf_counter()
    program = blocks(operators)
    checked = time.perf_counter()
    shorter, report, seconds = timed_elimination(program)
    print(f"{len(program.statements)} operators: made and checked in {checked - began:.1f} s, eliminated in {seconds:.1f} s")
    print(report.summary().splitlines()[0])
    began = time.perf_counter()
    mapped = mapped_on(shorter, given.target[0])
    print(f"problem of {len(mapped.problem.operators)} operators in {time.perf_counter() - began:.1f} s")
    result = solve(mapped.problem, time_limit=given.time_limit)
    print(result.summary())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = {"wavenet": wavenet, "resnet50": resnet50, "corpus": every_network, "propagation": propagation, "large": large}
    parser.add_argument("experiment", choices=what)
    parser.add_argument("--target", nargs="+", default=["inferentia"], help="targets with banks, by name or path")
    parser.add_argument(
        "--precision",
        nargs="+",
        default=["file"],
        choices=["file", *PRECISIONS],
        help="of floating-point tensors; file: its own",
    )
    parser.add_argument("--time-limit", type=float, default=60.0)
    given = parser.parse_args()
    given.precision = [None if precision == "file" else precision for precision in given.precision]
    what[given.experiment](given)


if __name__ == "__main__":
    main()
