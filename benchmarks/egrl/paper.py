"""EGRL beside other methods on the networks of its paper: the tables and figures of Khadka et al., ICLR 2021, with our numbers.

    python -m benchmarks.egrl.paper --only figure3        # best speedup over evaluations, beside the baselines and the optimum
    python -m benchmarks.egrl.paper --only attribution    # what each part of EGRL is worth
    python -m benchmarks.egrl.paper --only paper          # the paper's hyperparameters
    python -m benchmarks.egrl.paper --only noise          # the same order where measurements are noisy?
    python -m benchmarks.egrl.paper --only figure4        # policies on networks that they were not trained on
    python -m benchmarks.egrl.paper                       # all of them

Each run is kept in a folder once it has come to its end; started again, a command makes only the runs that are missing, and
several commands may work on one folder side by side. ``docs/results/egrl.md`` says more.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.egrl import charts, tables, transfer
from benchmarks.egrl.methods import GREEDY, METHODS, OPTIMUM, VARIANTS, perform, run_of, seeds_of
from benchmarks.egrl.runs import Record, Run, finished
from benchmarks.egrl.tables import Records
from benchmarks.lib.places import ROOT
from benchmarks.lib.runs import in_processes, make_all, outlook
from benchmarks.lib.tables import write_into

NETWORKS = ("resnet50", "resnet101", "bert_base_s128", "bert_base_s384")
PRECISIONS = ("int8", "fp16")

#: Evaluations that the paper gives its agents.
BUDGET = 4_000

PAGE = ROOT / "docs" / "results" / "egrl.md"


@dataclasses.dataclass(frozen=True)
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
    "paper": Part(("paper", "egrl", "ea", *GREEDY), ("int8",), 5),
    "noise": Part(tuple(name for name, method in METHODS.items() if method.noisy), ("int8",), 5, noise=0.05),
    "figure4": Part(("egrl",), ("int8",), 5, others=(OPTIMUM, "greedy_dp")),
}


Texts = dict[str, str]
"""Tables, by the name of their place in the page."""


def _methods(name: str, options: argparse.Namespace) -> list[str]:
    return [method for method in PARTS[name].methods if not options.methods or method in options.methods]


def runs_of(name: str, options: argparse.Namespace) -> list[Run]:
    """Runs of a part; those of one seed for all methods and networks come before those of the next."""
    part = PARTS[name]
    precisions = options.precisions or part.precisions
    seeds = options.seeds or list(range(part.seeds))
    places = [(network, precision) for precision in precisions for network in options.networks]
    found = [run_of(method, *place, 0, options.evaluations) for place in places for method in part.others]
    for seed in seeds:
        found += [
            run_of(method, *place, seed, options.evaluations, part.noise, options.seconds if method == "paper" else None)
            for place in places
            for method in _methods(name, options)
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
        print(outlook(runs, options.folder, Record), file=sys.stderr, flush=True)
    if options.processes == 1:
        if make_all(runs, options.folder, perform, lambda line: print(line, file=sys.stderr, flush=True)):
            sys.exit("a run failed; what is finished is kept")
        return
    if not in_processes("benchmarks.egrl.paper", [*sys.argv[1:], "--processes", "1", "--worker"], options.processes):
        sys.exit(1)


def _with_picture(options: argparse.Namespace, name: str, what: str, *texts: str) -> str:
    """Texts below the link to a picture, where that was drawn."""
    picture = f"![{what}]({name})" if (options.pictures / name).exists() else ""
    return "\n\n".join(filter(None, [picture, *texts]))


def _seeds(records: Records, noise: float = 0.0, method: str = "egrl") -> str:
    """How many seeds EGRL or another method has, at least and at most."""
    counts = sorted({len(found) for place in records.places if (found := records.of(place, method, noise))})
    if len(counts) > 1:
        return f"{counts[0]} to {counts[-1]} seeds"
    return "no seed" if not counts else "one seed" if counts == [1] else f"{counts[0]} seeds"


def figure3(options: argparse.Namespace) -> Texts:
    methods, records = _methods("figure3", options), Records(finished(runs_of("figure3", options), options.folder))
    charts.curves(records, methods, options.pictures / "egrl-figure3.png", options.evaluations)
    what = "Best speedup so far over evaluations: mean and standard deviation over seeds"
    budget = f"{options.evaluations:,} evaluations, {_seeds(records)}."
    shown = [
        method for method in methods if method not in ("greedy_dp_repaired", "random", "annealing")
    ]  # the first as Greedy-DP
    return {
        "figure3": _with_picture(options, "egrl-figure3.png", what, budget, tables.final(records, shown)),
    }


def attribution(options: argparse.Namespace) -> Texts:
    methods, records = _methods("attribution", options), Records(finished(runs_of("attribution", options), options.folder))
    charts.bars(records, methods, options.pictures / "egrl-attribution.png")
    what = "Difference of each variant to EGRL; faint marks are single networks"
    budget = f"{options.evaluations:,} evaluations, {_seeds(records)}."
    # The page has the picture, and a sentence.
    print(tables.attribution(records, methods))
    return {"attribution": _with_picture(options, "egrl-attribution.png", what, budget)}


def paper(options: argparse.Namespace) -> Texts:
    records = Records(finished(runs_of("paper", options), options.folder))
    shown = [
        method for method in _methods("paper", options) if method != "greedy_dp_repaired"
    ]  # the same speedups as Greedy-DP
    seeds = f"{_seeds(records, method='paper')}.".capitalize()
    return {"paper": f"{seeds}\n\n{tables.at_equal(records, 'paper', shown)}"}


def noise(options: argparse.Namespace) -> Texts:
    methods, records = _methods("noise", options), Records(finished(runs_of("noise", options), options.folder))
    part = PARTS["noise"].noise
    budget = f"{options.evaluations:,} evaluations, {_seeds(records, part)}."
    shown = [method for method in methods if method in ("egrl", "ea", "greedy_dp")]
    # The page has a sentence.
    print(f"noise:\n\n{budget}\n\n{tables.noisy(records, shown, part)}\n")
    return {}


def figure4(options: argparse.Namespace) -> Texts:
    runs = runs_of("figure4", options)
    records = Records(finished(runs, options.folder))
    found = list(transfer.trials(runs, options.networks, options.folder))
    if not found:
        return {}
    charts.transfer(records, found, options.pictures / "egrl-figure4.png")
    what = "Policies on networks that they were not trained on, over their training"
    seeds = f"{_seeds(records)}.".capitalize()
    return {"figure4": _with_picture(options, "egrl-figure4.png", what, seeds)}


REPORTS: dict[str, Callable[[argparse.Namespace], Texts]] = {
    "figure3": figure3,
    "attribution": attribution,
    "paper": paper,
    "noise": noise,
    "figure4": figure4,
}


def report(options: argparse.Namespace) -> None:
    """Tables and pictures of what is finished."""
    for name in options.only:
        texts = REPORTS[name](options)
        if options.write:
            write_into(PAGE, texts)
        else:
            for place, text in texts.items():
                print(f"{place}:\n\n{text}\n", flush=True)
    print(f"pictures are in {options.pictures}", file=sys.stderr)


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--only", nargs="+", default=list(PARTS), choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    add("--methods", nargs="+", default=[], choices=METHODS | VARIANTS, metavar="METHOD", help="fewer than those of a part")
    add("--seeds", nargs="+", type=int, default=[], help="others than those of a part (five, of attribution three)")
    add("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    add("--precisions", nargs="+", default=[], choices=PRECISIONS, help="default: both in figure 3, int8 elsewhere")
    add("--evaluations", type=int, default=BUDGET, help="of each run")
    add("--seconds", type=float, help="stop each run of the paper's preset after so long, however many evaluations it has made")
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
            print(f"stopped; {outlook(runs, options.folder, Record)}", file=sys.stderr)
        sys.exit(130)
    if options.runs_only or options.worker:
        return
    options.pictures = PAGE.parent if options.write else options.folder
    options.pictures.mkdir(parents=True, exist_ok=True)
    report(options)


if __name__ == "__main__":
    main()
