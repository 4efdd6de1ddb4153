"""MMap-MuZero against other players of MMapGame: the tables and figures of Wang et al. 2023 with our numbers.

    python -m benchmarks.muzero.paper table2     # best reward at equal wall time, and its curves (table 2, figure 5)
    python -m benchmarks.muzero.paper ablation   # search only against search and learning (figure 7)
    python -m benchmarks.muzero.paper small      # the agent against the best game, where that is proven
    python -m benchmarks.muzero.paper table3     # a policy's plans against XLA's and the greedy's (table 3)

Every run is a process on one core, and leaves a JSON file; started again, a command makes only the runs that are missing.
Programs are modules or converted problems; those of the paper, or what comes closest, are looked for in the shared corpus
($STOWPLAN_SHARED, or ../shared). ``docs/results/muzero.md`` says more.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.lib.memory_mapping.players import ABLATION, METHODS, PLAYERS, Policies, settings_of
from benchmarks.lib.places import SHARED
from benchmarks.lib.runs import save
from benchmarks.lib.tables import table
from benchmarks.muzero import charts, speedups
from benchmarks.muzero import small as small_programs
from benchmarks.muzero.runs import Record, Run, perform, run_all
from stowplan.portfolio.memory_mapping.learned import POLICY

CORPUS = SHARED / "corpus" / "tpu_v4"

#: Our module for each of the paper's programs in table 2, and the paper's results: moves, MMap-MuZero, ES, random.
PAPER_TABLE_2 = {
    "alexnet_train_b32": ("alexnet_train_batch_32", 300, 0.5834, 0.5426, 0.4100),
    "wavenet_inf_b32": ("wavenet_coherent_batch32", 3020, 0.7099, 0.7004, 0.4804),
    "alphatensor_train_b4": ("AlphaTensor", 9084, 0.7680, 0.5357, 0.2481),
    "transformer_encdec_train_bf16_b16": ("tensor2tensor_transformer_bf16", 9888, 0.7002, 0.6263, 0.3227),
}
PAPER_METHODS = ("agent", "evolution", "random")

MOMENTS = (1, 3, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600)


def compare(options: argparse.Namespace, figure: str) -> None:
    """Run methods on programs, print what they reached, and draw their curves where a picture is asked for."""
    programs = options.programs or [CORPUS / f"{name}.hlo.txt.gz" for name in PAPER_TABLE_2]
    missing = [path for path in programs if not path.exists()]
    if missing:
        sys.exit(f"{missing[0]}: no such file; name programs, or put the shared corpus beside the repository (STOWPLAN_SHARED)")
    runs = [
        Run(method, str(path), seed, options.seconds, options.target, settings_of(method, options.set))
        for path in programs
        for method in options.methods
        for seed in options.seeds
    ]
    records = run_all(runs, options.folder, cores=options.cores)
    if not records:
        sys.exit("no run came to its end")
    print(_rewards(records, options.methods), end="\n\n")
    print(charts.over_time(records, [moment for moment in MOMENTS if moment <= options.seconds]), end="\n\n")
    if options.png:
        charts.draw(records, options.png, figure)


def _rewards(records: Sequence[Record], methods: Sequence[str]) -> str:
    """One row for each program: R by method, mean and range over seeds."""
    rows = []
    for program in dict.fromkeys(each.program for each in records):
        groups = {method: [r for r in records if (r.program, r.method) == (program, method)] for method in methods}
        moves = next(each.moves for each in records if each.program == program)
        rows.append([program, f"{moves:,}", *(_mean_and_range(groups[method]) for method in methods)])
        if program in PAPER_TABLE_2:
            name, size, *results = PAPER_TABLE_2[program]
            paper = dict(zip(PAPER_METHODS, results, strict=True))
            cells = [f"{paper[method]:.4f}" if method in paper else "" for method in methods]
            rows.append([f"*paper: {name}*", f"{size:,}", *cells])
    return table(rows, ["program", "moves", *methods])


def _mean_and_range(group: Sequence[Record]) -> str:
    found = [each.best for each in group]
    if len(found) < 2:
        return "".join(f"{best:.4f}" for best in found)
    return f"{statistics.fmean(found):.4f} ({min(found):.4f} to {max(found):.4f})"


def run(options: argparse.Namespace) -> None:
    """One run, in this process: what the other commands start."""
    if options.core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {options.core})
    given = json.loads(options.run)
    this = Run(**{**given, "settings": tuple(given["settings"])})
    save(this.file(options.folder), perform(this, METHODS[this.method]))


def _seeds(options: argparse.Namespace) -> str:
    return "one seed" if len(options.seeds) == 1 else f"{len(options.seeds)} seeds"


def table2(options: argparse.Namespace) -> None:
    compare(options, f"Best reward over time, {_seeds(options)}, one core each")


def ablation(options: argparse.Namespace) -> None:
    compare(options, f"Search and learning, {_seeds(options)}, one core each")


def small(options: argparse.Namespace) -> None:
    runs = small_programs.Runs(options.methods, options.seeds, options.seconds, tuple(options.set), options.folder)
    print(small_programs.compare(options.programs, options.count, options.target, runs))


def table3(options: argparse.Namespace) -> None:
    paths = options.programs or sorted(CORPUS.glob("*.hlo.txt.gz"))
    if not paths:
        sys.exit(f"{CORPUS}: no modules; name some, or put the shared corpus beside the repository (STOWPLAN_SHARED)")
    plans = options.plans or paths[0].parent.with_name(f"{paths[0].parent.name}_xla_plan")
    if not plans.is_dir():
        print(f"{plans}: no such folder, so that there is nothing to compare with XLA", file=sys.stderr)
    if not options.policy.is_file():
        sys.exit(f"{options.policy}: no such file; name a policy, as 'stowplan train muzero --policy' writes it")
    policies = Policies(options.policy, options.seconds, options.players)
    players = policies.players()
    # Rows of another policy, or another limit, are not these.
    folder = options.folder / f"{policies.policy.file.digest[:8]}-{options.seconds:g}s"
    rows = speedups.measure_all(paths, plans, options.target, players, policies.trained_on, folder)
    print(speedups.markdown(rows, list(players)))


def _cores(text: str) -> list[int]:
    return [int(core) for core in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(function: object, name: str, seconds: float, folder: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name)
        made.set_defaults(function=function)
        made.add_argument("programs", nargs="*", type=Path, help="modules or converted problems (default: the shared corpus)")
        made.add_argument("--target", default="tpu-v4")
        made.add_argument("--seconds", type=float, default=seconds, help="wall time of a run")
        made.add_argument(
            "--set", nargs="+", default=[], metavar="NAME=VALUE", help="hyperparameters of the agent; device=cuda"
        )
        made.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
        made.add_argument("--folder", type=Path, default=Path("results") / folder, help="where records are kept")
        return made

    for function, name, methods in ((table2, "table2", list(METHODS)), (ablation, "ablation", list(ABLATION))):
        # Both in one folder: a run that one of them made serves the other.
        made = command(function, name, 600.0, "mmap_runs")
        made.add_argument("--methods", nargs="+", default=methods, choices=METHODS)
        made.add_argument("--cores", type=_cores, default=[0], help="cores to use, one run at a time on each: 0,1")
        made.add_argument("--png", type=Path, help="draw the curves here")
    made = command(small, "small", 10.0, "mmap_small")
    made.add_argument("--count", type=int, default=48, help="made-up programs, and windows of each module that is named")
    made.add_argument("--methods", nargs="+", default=["agent", "search", "evolution", "greedy"], choices=METHODS)
    made = command(table3, "table3", 30.0, "mmap_table3")
    made.add_argument("--policy", type=Path, default=POLICY.path, help="file of a policy (default: the one shipped)")
    made.add_argument("--players", nargs="+", default=list(PLAYERS), choices=PLAYERS)
    made.add_argument("--plans", type=Path, help="XLA's plans (default: the folder FOLDER_xla_plan)")
    made = commands.add_parser("run", help="one run; what the other commands start")
    made.set_defaults(function=run)
    made.add_argument("run", help="fields of a run, as JSON")
    made.add_argument("--folder", type=Path, required=True)
    made.add_argument("--core", type=int)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
