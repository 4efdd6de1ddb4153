"""EGRL beside other methods on the networks of its paper: the tables and figures of Khadka et al., ICLR 2021, with our numbers.

    python benchmarks/egrl.py --only figure3        # best speedup over evaluations, beside the baselines and the optimum
    python benchmarks/egrl.py --only attribution    # what each part of EGRL is worth
    python benchmarks/egrl.py --only noise          # the same order where measurements are noisy?
    python benchmarks/egrl.py --only figure4        # policies on networks that they were not trained on
    python benchmarks/egrl.py --only maps           # figures 5 to 7: the best maps, and those near the compiler's
    python benchmarks/egrl.py                       # all of them

Each run is kept in a folder once it has come to its end; started again, a command makes only the runs that are missing, and
several commands may work on one folder side by side. ``docs/benchmarks-egrl.md`` says more.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import egrl_methods
from egrl_methods import METHODS, OPTIMUM, VARIANTS, run_of, seeds_of
from egrl_runs import ROOT, Run, make_all, outlook
from one_core import ONE_THREAD

NETWORKS = ("resnet50", "resnet101", "bert_base_s128", "bert_base_s384")
PRECISIONS = ("int8", "fp16")

#: Evaluations that the paper gives its agents.
BUDGET = 4_000

PAGE = ROOT / "docs" / "benchmarks-egrl.md"


@dataclass(frozen=True)
class Part:
    """A part of the page: its runs, where the options do not say otherwise."""

    methods: tuple[str, ...]
    precisions: tuple[str, ...]
    seeds: int
    noise: float = 0.0
    others: tuple[str, ...] = (OPTIMUM,)
    """Methods whose runs are needed beside those, of one seed and without noise."""


PARTS = {
    "figure3": Part(tuple(METHODS), PRECISIONS, 5),
    "attribution": Part(tuple(VARIANTS), ("int8",), 3),
    "noise": Part(tuple(name for name, method in METHODS.items() if method.noisy), ("int8",), 5, noise=0.05),
    "figure4": Part(("egrl",), ("int8",), 5, others=(OPTIMUM, "greedy_dp")),
    "maps": Part(("egrl",), ("int8",), 5),
}


def runs_of(name: str, options: argparse.Namespace) -> list[Run]:
    """Runs of a part; those of one seed for all methods and networks come before those of the next."""
    part = PARTS[name]
    methods = [method for method in part.methods if not options.methods or method in options.methods]
    precisions = options.precisions or part.precisions
    seeds = options.seeds or list(range(part.seeds))
    places = [(network, precision) for precision in precisions for network in options.networks]
    found = [run_of(method, *place, 0, options.evaluations) for place in places for method in part.others]
    for seed in seeds:
        found += [
            run_of(method, *place, seed, options.evaluations, part.noise)
            for place in places
            for method in methods
            if seed in seeds_of(method, seeds, part.noise)
        ]
    return found


def _all_runs(options: argparse.Namespace) -> list[Run]:
    """Of all parts that are asked for, each once."""
    return list(dict.fromkeys(run for name in options.only for run in runs_of(name, options)))


def make(options: argparse.Namespace) -> None:
    """Make what is missing, in so many processes."""
    runs = _all_runs(options)
    if not options.worker:
        print(outlook(runs, options.folder), file=sys.stderr, flush=True)
    if options.processes == 1:
        make_all(runs, options.folder, egrl_methods.perform, lambda line: print(line, file=sys.stderr, flush=True))
        return
    command = [sys.executable, __file__, *sys.argv[1:], "--processes", "1", "--worker"]
    workers = [subprocess.Popen(command, env={**os.environ, **ONE_THREAD}) for _ in range(options.processes)]
    try:
        failed = [worker.wait() for worker in workers]
    except BaseException:
        for worker in workers:
            worker.terminate()
        raise
    if any(failed):
        sys.exit("a process failed; what is finished is kept")


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--only", nargs="+", default=list(PARTS), choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    add("--methods", nargs="+", default=[], choices=METHODS | VARIANTS, metavar="METHOD", help="fewer than those of a part")
    add("--seeds", nargs="+", type=int, default=[], help="others than those of a part (five, of attribution three)")
    add("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    add("--precisions", nargs="+", default=[], choices=PRECISIONS, help="default: both in figure 3, int8 elsewhere")
    add("--evaluations", type=int, default=BUDGET, help="of each run")
    add("--processes", type=int, default=1, help="runs at a time, each on one core")
    add("--folder", type=Path, default=Path("results") / "egrl", help="where runs are kept")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--runs-only", action="store_true", help="make runs, and leave tables and pictures for later")
    what.add_argument("--no-runs", action="store_true", help="tables and pictures of what is there")
    add("--write", action="store_true", help=f"write tables and pictures into {PAGE.relative_to(ROOT)} and beside it")
    add("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(None if arguments is None else list(arguments))
    try:
        if not options.no_runs:
            make(options)
    except KeyboardInterrupt:
        if not options.worker:
            runs = _all_runs(options)
            print(f"stopped; {outlook(runs, options.folder)}", file=sys.stderr)
        sys.exit(130)
    if options.runs_only or options.worker:
        return


if __name__ == "__main__":
    main()
