"""Results at a glance: public instances of each kind of problem, with the usual default, our plan and the gap to the bound.

    python -m benchmarks.house.glance [--time-limit 10] [--only KIND ...] [--write]

Instances come from ``examples/data`` and, if it exists, from the corpus beside the checkout. The usual default is what a
compiler does without a solver: the baseline of the kind, XLA's own plan if there is one, or the order given. ``--write`` puts
the table into docs/results/at-a-glance.md.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import stowplan
from benchmarks.lib.places import EXAMPLES, ROOT, SHARED
from benchmarks.lib.tables import table, write_into
from stowplan.frontends.options import ReadOptions
from stowplan.frontends.read import open_input
from stowplan.frontends.xla_plan import import_xla_plan
from stowplan.result import Result

PAGE = ROOT / "docs" / "results" / "at-a-glance.md"

CORPUS = SHARED / "corpus"


class Instance(NamedTuple):
    """One row."""

    kind: str
    path: Path
    target: str | None = None
    """Name of the target, for files that need one."""
    xla_plan: Path | None = None
    """The module after XLA's memory-space assignment."""


def _xla(name: str) -> Instance:
    before, after = (CORPUS / folder / f"{name}.hlo.txt.gz" for folder in ("tpu_v4", "tpu_v4_xla_plan"))
    return Instance("memory mapping", before, "tpu-v4", xla_plan=after)


INSTANCES = (
    Instance("memory mapping", EXAMPLES / "alexnet_train_b32.hlo.txt.gz", "tpu-v4"),
    _xla("gpt_decode_loop_b8"),
    *(Instance("packing", SHARED / "dsa" / "minimalloc" / f"{name}.1048576.csv") for name in "AD"),
    Instance("operator order", CORPUS / "order" / "bigru_unrolled.graph.json.gz"),
    Instance("tier placement", EXAMPLES / "resnet50.layers.json", "nnp-i"),
    Instance("modulo scheduling", EXAMPLES / "fir.dfg.json", "se"),
    *(Instance("modulo scheduling", SHARED / "dfg" / name, "se") for name in ("genmap/dct4.json", "morpher/aes_encrypt.json")),
    Instance("bank mapping", EXAMPLES / "attention.hlo.txt", "inferentia"),
    Instance("banked packing", EXAMPLES / "banks.json"),
)


def solve(instance: Instance, seconds: float) -> Result:
    """Read and solve an instance."""
    problem, program, *_ = open_input(instance.path, ReadOptions(target=instance.target))
    if instance.xla_plan is None:
        return stowplan.solve(problem, time_limit=seconds)
    assert program is not None
    plans = {"xla": import_xla_plan(problem, program, instance.xla_plan).plan}
    return stowplan.solve(problem, time_limit=seconds, plans=plans, baseline="xla")


def row(instance: Instance, result: Result) -> list[str]:
    """Cells of the table."""
    name = re.sub(r"\.(hlo\.txt|layers\.json|dfg\.json|graph\.json|json|csv)(\.gz)?$", "", instance.path.name)
    if result.objective is None:
        return [instance.kind, name, "", "no plan", "", result.status]
    gap = "optimal" if result.status == "optimal" else f"{100 * (result.gap or 0):.2f} %"
    if gap == "0.00 %" and instance.kind == "modulo scheduling":
        gap = "interval optimal"
    default = "" if result.baseline is None else f"{result.baseline_name}: {result.unit.write(result.baseline)}"
    gain = "" if not result.speedup else f"{result.speedup:.3f}"
    return [instance.kind, name, default, result.unit.write(result.objective), gain, gap]


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each instance")
    parser.add_argument("--only", nargs="+", default=[], metavar="KIND", help="kinds, with underscores")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args(None if arguments is None else list(arguments))
    rows = []
    for instance in INSTANCES:
        if options.only and instance.kind.replace(" ", "_") not in options.only:
            continue
        if not instance.path.exists():
            print(f"{instance.path}: not there, left out", file=sys.stderr)
            continue
        print(f"{instance.kind}: {instance.path.name}", file=sys.stderr, flush=True)
        rows.append(row(instance, solve(instance, options.time_limit)))
    text = table(rows, ["kind", "instance", "usual default", "stowplan", "default / stowplan", "gap to the bound"])
    if options.write:
        write_into(PAGE, {"glance": text})
    print(text)


if __name__ == "__main__":
    main()
