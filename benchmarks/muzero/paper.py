"""MMap-MuZero against other players of MMapGame: the tables and figures of Wang et al. 2023 with our numbers.

    python -m benchmarks.muzero.paper table2     # best reward at equal wall time, and its curves (table 2, figures 5 and 7)
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

from benchmarks.lib.memory_mapping.players import METHODS, policy_player, settings_of
from benchmarks.lib.places import SHARED
from benchmarks.lib.runs import save
from benchmarks.lib.tables import table
from benchmarks.muzero import charts, speedups
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


def table2(options: argparse.Namespace) -> None:
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
        seeds = "one seed" if len(options.seeds) == 1 else f"{len(options.seeds)} seeds"
        charts.draw(records, options.png, f"Best reward over time, {seeds}, one core each")


def _rewards(records: Sequence[Record], methods: Sequence[str]) -> str:
    """One row for each program: R by method, mean and range over seeds."""
    rows = []
    for program in dict.fromkeys(record.program for record in records):
        groups: dict[str, list[Record]] = {method: [] for method in methods}
        for record in records:
            if record.program == program:
                groups[record.method].append(record)
        moves = next(record.moves for record in records if record.program == program)
        rows.append([program, f"{moves:,}", *(_mean_and_range(groups[method]) for method in methods)])
        if program in PAPER_TABLE_2:
            name, size, *results = PAPER_TABLE_2[program]
            paper = dict(zip(PAPER_METHODS, results, strict=True))
            cells = [f"{paper[method]:.4f}" if method in paper else "" for method in methods]
            rows.append([f"*paper: {name}*", f"{size:,}", *cells])
    return table(rows, ["program", "moves", *methods])


def _mean_and_range(group: Sequence[Record]) -> str:
    rewards = [record.best for record in group]
    if len(rewards) < 2:
        return "".join(f"{reward:.4f}" for reward in rewards)
    return f"{statistics.fmean(rewards):.4f} ({min(rewards):.4f} to {max(rewards):.4f})"


def run(options: argparse.Namespace) -> None:
    """One run, in this process: what the other commands start."""
    if options.core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {options.core})
    given = json.loads(options.run)
    this = Run(**{**given, "settings": tuple(given["settings"])})
    save(this.file(options.folder), perform(this, METHODS[this.method]))


def table3(options: argparse.Namespace) -> None:
    paths = options.programs or sorted(CORPUS.glob("*.hlo.txt.gz"))
    if not paths:
        sys.exit(f"{CORPUS}: no modules; name some, or put the shared corpus beside the repository (STOWPLAN_SHARED)")
    plans = options.plans or paths[0].parent.with_name(f"{paths[0].parent.name}_xla_plan")
    if not plans.is_dir():
        print(f"{plans}: no such folder, so that there is nothing to compare with XLA", file=sys.stderr)
    if not options.policy.is_file():
        sys.exit(f"{options.policy}: no such file; name a policy, as 'stowplan train muzero --policy' writes it")
    import torch

    from stowplan.learned_guidance.memory_mapping.muzero.play import Policy

    torch.set_num_threads(1)
    policy = Policy.load(options.policy)
    # Rows of another policy are not these.
    folder, trained_on = options.folder / policy.file.digest[:8], policy.file.provenance.programs
    rows = speedups.measure_all(paths, plans, options.target, policy_player(policy), trained_on, folder)
    print(speedups.markdown(rows))


def _cores(text: str) -> list[int]:
    return [int(core) for core in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    one, two = commands.add_parser("table2"), commands.add_parser("table3")
    for made, function, folder in ((one, table2, "mmap_runs"), (two, table3, "mmap_table3")):
        made.set_defaults(function=function)
        made.add_argument("programs", nargs="*", type=Path, help="modules or converted problems (default: the shared corpus)")
        made.add_argument("--target", default="tpu-v4")
        made.add_argument("--folder", type=Path, default=Path("results") / folder, help="where records are kept")
    one.add_argument("--seconds", type=float, default=600.0, help="wall time of a run")
    one.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="hyperparameters of the agent; device=cuda")
    one.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    one.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    one.add_argument("--cores", type=_cores, default=[0], help="cores to use, one run at a time on each: 0,1")
    one.add_argument("--png", type=Path, help="draw the curves here")
    two.add_argument("--policy", type=Path, default=POLICY.path, help="file of a policy (default: the one shipped)")
    two.add_argument("--plans", type=Path, help="XLA's plans (default: the folder FOLDER_xla_plan)")
    made = commands.add_parser("run", help="one run; what the other commands start")
    made.set_defaults(function=run)
    made.add_argument("run", help="fields of a run, as JSON")
    made.add_argument("--folder", type=Path, required=True)
    made.add_argument("--core", type=int)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
