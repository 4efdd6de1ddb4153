"""Data-movement elimination and bank mapping beside the figures of the Inferentia paper (section 3).

    python benchmarks/bank_mapping.py wavenet     # elimination on Parallel WaveNet
    python benchmarks/bank_mapping.py resnet50    # local against global bank mapping
    python benchmarks/bank_mapping.py corpus      # every network: pairs, baselines, proof
    python benchmarks/bank_mapping.py large       # a graph of 10,000 operators

The networks are those of the shared corpus, in ``../shared`` or where STOWPLAN_SHARED says.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

from stowplan.hardware.affine.program import Program
from stowplan.hardware.elimination.eliminate import Report, eliminate
from stowplan.hardware.frontends.affine import Builder
from stowplan.hardware.inferentia.problem import MappedProgram, build_problem
from stowplan.hardware.inferentia.target import load_target
from stowplan.hardware.inferentia.traffic import traffic
from stowplan.models.bank_mapping.plan import Plan
from stowplan.models.bank_mapping.verify import verify
from stowplan.portfolio.bank_mapping.candidates import local_plan, propagated_plan
from stowplan.portfolio.graphs import read_graph
from stowplan.portfolio.solve import solve


def corpus() -> Path:
    return Path(os.environ.get("STOWPLAN_SHARED", Path(__file__).parents[2] / "shared")) / "corpus"


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
    found = verify(mapped.problem, plan)
    assert found.ok, found.violations[:3]
    return found.copied_bytes or 0, found.off_chip_bytes or 0


def saved(before: float, after: float) -> str:
    return f"{(after - before) / before:+.1%}" if before else "0 before"


def wavenet(target: str, time_limit: float) -> None:
    program = read_graph(corpus() / "unoptimized" / "parallel_wavenet_inf_b2.hlo.txt.gz")
    shorter, report, seconds = timed_elimination(program)
    print(f"Parallel WaveNet, batch 2, 6,400 samples: {len(program.statements)} statements, eliminated in {seconds:.2f} s")
    for op, (gone, found) in report.by_op().items():
        print(f"  {op:<12} {gone:5} of {found:5} pairs")
    for each in report.kept:
        print(f"  kept {each.name} ({each.op}, {each.bytes:,} bytes): {each.reason}")
    both = []
    for each in (program, shorter):
        mapped = mapped_on(each, target)
        both.append(traffic(mapped, propagated_plan(mapped.problem)))
    share = report.tensor_bytes / report.movement_bytes
    print(f"{'':28}{'ours':>28}{'paper':>18}")
    print(f"{'pairs eliminated':28}{f'{report.eliminated} of {report.found}':>28}{'123 of 124':>18}")
    ours = f"{report.tensor_bytes / 1e6:.0f} of {report.movement_bytes / 1e6:.0f} MB ({share:.1%})"
    print(f"{'tensors eliminated':28}{ours:>28}{'145 of 146 MB':>18}")
    print(f"{'on-chip bytes':28}{saved(both[0].on_chip, both[1].on_chip):>28}{'-10%':>18}")
    print(f"{'off-chip bytes':28}{saved(both[0].off_chip, both[1].off_chip):>28}{'-11%':>18}")
    print("On-chip bytes are all loads and stores in the scratchpad; the paper does not say what its copies are counted over.")


def resnet50(target: str, time_limit: float) -> None:
    for path in (corpus() / "unoptimized" / "resnet50_inf_b1.hlo.txt.gz", corpus() / "onnx" / "resnet50_b1.stripped.onnx"):
        program, _, _ = timed_elimination(read_graph(path))
        mapped = mapped_on(program, target)
        local = bytes_moved(mapped, local_plan(mapped.problem))
        propagated = bytes_moved(mapped, propagated_plan(mapped.problem))
        result = solve(mapped.problem, time_limit=time_limit)
        exact = bytes_moved(mapped, result.plan)
        print(f"ResNet-50, batch 1 ({path.name}): {len(mapped.problem.operators)} operators; {result.status}")
        print(f"{'':24}{'local':>16}{'propagation':>16}{'exact':>16}{'ours':>10}{'paper':>8}")
        for at, (what, paper) in enumerate((("copied between banks", "-76%"), ("moved off chip", "-37%"))):
            figures = "".join(f"{each[at] / 1e6:13.1f} MB" for each in (local, propagated, exact))
            print(f"{what:24}{figures}{saved(local[at], propagated[at]):>10}{paper:>8}")


def every_network(target: str, time_limit: float) -> None:
    print(
        f"{'network':28}{'pairs':>14}{'elim. s':>8}{'operators':>10}"
        f"{'local':>10}{'propag.':>10}{'best':>10}{'gap':>8}  status, s (MB moved)"
    )
    for path in networks():
        program, report, seconds = timed_elimination(read_graph(path))
        mapped = mapped_on(program, target)
        result = solve(mapped.problem, time_limit=time_limit)
        name = path.name.split(".")[0]
        row = f"{name:28}{f'{report.eliminated}/{report.found}':>14}{seconds:8.2f}{len(mapped.problem.operators):10}"
        figures = (result.baselines["local"], result.baselines["propagation"], result.objective or 0)
        row += "".join(f"{each / 1e6:10.1f}" for each in figures)
        print(f"{row}{result.gap or 0:8.2%}  {result.status}, {result.seconds:.1f}", flush=True)


def large(target: str, time_limit: float, operators: int = 10_000) -> None:
    """Blocks of a projection, heads split and put together, a residual sum: half of all operators move data."""
    chance = random.Random(0)
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
    began = time.perf_counter()
    program = b.build(x)
    checked = time.perf_counter()
    shorter, report, seconds = timed_elimination(program)
    print(f"{len(program.statements)} operators: checked in {checked - began:.1f} s, eliminated in {seconds:.1f} s")
    print(report.summary().splitlines()[0])
    began = time.perf_counter()
    mapped = mapped_on(shorter, target)
    print(f"problem of {len(mapped.problem.operators)} operators in {time.perf_counter() - began:.1f} s")
    result = solve(mapped.problem, time_limit=time_limit)
    print(result.summary())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = {"wavenet": wavenet, "resnet50": resnet50, "corpus": every_network, "large": large}
    parser.add_argument("experiment", choices=what)
    parser.add_argument("--target", default="inferentia")
    parser.add_argument("--time-limit", type=float, default=60.0)
    given = parser.parse_args()
    what[given.experiment](given.target, given.time_limit)


if __name__ == "__main__":
    main()
