"""The PPO mapper beside its controls and baselines, at equal evaluations and equal seconds: docs/results/ppo.md.

``python -m benchmarks.ppo.paper run GRAPHS --folder RUNS [--method ppo --seeds 3 ...]`` makes runs that are not there yet,
each kept in a file of its own; ``tables --folder RUNS`` prints the tables; ``single [--page FILE]`` judges roll-outs one by
one, ``chart CURVE... --output FILE`` draws the reward over training. Several processes may work on one folder. ``--machine``,
``--max-delay``, ``--least``, ``--most``, ``--first``, ``--seconds`` and ``--repair`` choose a setting; runs of several may lie
in one folder, and ``tables`` prints those of the setting that it is given, under ``--as``.

Methods: ``reference`` (CP-SAT, the initiation interval proven or not), ``list``, ``random``, ``evolution``, ``search``,
``uniform`` (roll-outs to any legal place), ``untrained`` (a network that was never trained), ``ppo`` (the policy that ships),
``NAME=FILE`` (any other policy; ``NAME@SEED=FILE`` of one training with several seeds, which share a row). Roll-outs have
the same masks and decoding. Policies were trained on generated graphs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.lib.tables import table, write_into
from benchmarks.ppo.runs import BUDGETS, INTERVALS, METHODS, NAMED, ROLLOUTS, Setting, load, make, particles, player_of, proven
from benchmarks.ppo.tables import percent, spread, texts_of
from stowplan.errors import InputError, StowplanError
from stowplan.learned_guidance.modulo_scheduling.body import Body as Mapped
from stowplan.models.modulo_scheduling.bounds import critical_path

#: Seconds of the reference for a graph.
REFERENCE = 20.0


def setting_of(arguments: argparse.Namespace) -> Setting:
    """What the options ask for."""
    fields = {name: getattr(arguments, name) for name in Setting.__dataclass_fields__ if hasattr(arguments, name)}
    return Setting(**{**fields, "only": tuple(arguments.only or ())})


def run(arguments: argparse.Namespace) -> None:
    """All runs that are not there yet."""
    setting = setting_of(arguments)
    usual = METHODS if setting.first == "ii" else ("list", "uniform", "untrained", "ppo")
    methods = arguments.method or ["reference", *usual]
    make(arguments.graphs, arguments.folder, setting, methods, arguments.seeds, arguments.count, arguments.reference_seconds)


def tables(arguments: argparse.Namespace) -> None:
    """Print tables."""
    texts, count = texts_of(load(arguments.folder), setting_of(arguments), arguments.name or "ppo")
    print(f"{count} graphs")
    give(texts)


def give(texts: dict[str, str], page: Path | None = None) -> None:
    """Tables on the page between their markers, or printed."""
    if page is not None:
        write_into(page, texts)
    else:
        print("\n\n".join(f"{name}\n{text}" for name, text in texts.items()))


def single(arguments: argparse.Namespace) -> None:
    """How often mappings come to their end at once, without copies of others: what a policy knows, and decoding does not."""
    setting = setting_of(arguments)
    least = proven([each for each in load(arguments.folder) if setting.covers(each)])
    found = [each[2] for each in setting.graphs(arguments.graphs) if each[2].digest in least]
    bodies = [(Mapped(problem), least[problem.digest]) for problem in {each.digest: each for each in found}.values()]
    judge = _likeliest if setting.first == "latency" else _complete
    judged = [(method.partition("=")[0], judge(method, bodies)) for method in arguments.method]
    # Means of latencies are of the graphs that every policy has a mapping of.
    some = np.isfinite([figures.get("latency over the critical path", np.zeros(1)) for _, figures in judged]).all(axis=0)
    rows: dict[str, list[dict[str, float]]] = {}
    for label, figures in judged:
        means = {name: float(values[some].mean() if "over" in name else values.mean()) for name, values in figures.items()}
        rows.setdefault(label.partition("@")[0], []).append(means)
    head = max((list(each) for group in rows.values() for each in group), key=len)

    def cell(name: str, group: list[dict[str, float]]) -> str:
        values = [each[name] for each in group if name in each]
        if not values:
            return ""
        return spread(values, lambda each: f"{each:.3f}") if "over" in name else percent(values)

    text = table([[name, *(cell(each, group) for each in head)] for name, group in rows.items()], ["policy", *head])
    print(f"{len(bodies)} graphs, {int(some.sum())} in means of latencies" if "latency" in text else f"{len(bodies)} graphs")
    give({arguments.name or "ppo single": text}, arguments.page)


def _complete(method: str, bodies: list[tuple[Mapped, int]]) -> dict[str, NDArray[np.float64]]:
    """Of each body, parts of its mappings that come to their end at the proven interval, by what is drawn."""
    player, chance, row = player_of(method), np.random.default_rng(0), {}
    if method != "uniform":
        done = np.zeros(len(bodies), bool)
        for more, name in enumerate(("likeliest", "likeliest, or at one more")):
            mappings = [particles(body, ii + more, 1)[0] for body, ii in bodies]
            done |= [each.current < 0 for each in player.place(mappings, chance, temperature=0.0)]
            row[name] = done.astype(float)
    mappings = [each for body, ii in bodies for each in particles(body, ii, ROLLOUTS)]
    done = np.array([each.current < 0 for each in player.place(mappings, chance)]).reshape(-1, ROLLOUTS)
    row["drawn"] = done.mean(axis=1)
    row[drawn := f"any of {ROLLOUTS} drawn"] = done.any(axis=1).astype(float)
    copied = [player.place(particles(body, ii, ROLLOUTS), chance, resample=True) for body, ii in bodies]
    row[f"{drawn}, with copies"] = np.array([float(any(each.current < 0 for each in group)) for group in copied])
    return row


def _likeliest(method: str, bodies: list[tuple[Mapped, int]]) -> dict[str, NDArray[np.float64]]:
    """Of each body, the least latency of the likeliest mappings at the least intervals, and at which; NaN where there is none.

    ``uniform`` draws a mapping at each of them.
    """
    player, chance = player_of(method), np.random.default_rng(0)
    best = [(np.inf, np.nan)] * len(bodies)
    complete = np.zeros(len(bodies))
    for more in range(INTERVALS):
        done = player.place([particles(body, ii + more, 1)[0] for body, ii in bodies], chance, temperature=0.0)
        for at, each in enumerate(done):
            if each.current < 0:
                plan = each.plan(list_scheduled=True)
                best[at] = min(best[at], (plan.makespan, plan.ii))
                complete[at] += 1 / INTERVALS
    return {
        "complete": complete,
        "any complete": (complete > 0).astype(float),
        "latency over the critical path": np.array(
            [a / critical_path(b.problem) for (a, _), (b, _) in zip(best, bodies, strict=True)]
        ),
        "II over the proven": np.array([own / ii for (_, own), (_, ii) in zip(best, bodies, strict=True)]),
    }


def chart(arguments: argparse.Namespace) -> None:
    """Reward over training, a run that goes on from another behind it."""
    import csv

    from matplotlib.figure import Figure

    steps, rewards, complete, before = [], [], [], 0
    for curve in arguments.curves:
        with curve.open() as stream:
            rows = [row for row in csv.DictReader(stream) if row["mean_reward"]]
        steps += [before + int(row["steps"]) for row in rows]
        rewards += [float(row["mean_reward"]) for row in rows]
        complete += [float(row["success"]) for row in rows]
        before = steps[-1]
    figure = Figure(figsize=(7, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, values, title in ((left, rewards, "mean reward"), (right, complete, "mappings completed")):
        axes.plot(steps, values, linewidth=0.5, alpha=0.4, color="C0")
        wide = [statistics.fmean(values[max(0, at - 7) : at + 8]) for at in range(len(values))]
        axes.plot(steps, wide, color="C0")
        axes.set_xlabel("placements")
        axes.set_title(title)
    figure.savefig(arguments.output, dpi=110)


def delay_of(text: str) -> int | None:
    """Clocks, or ``unlimited``."""
    return None if text == "unlimited" else int(text)


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    runs = parts.add_parser("run")
    runs.add_argument("graphs", type=Path, help="folder of suites")
    runs.add_argument("--method", action="append", help="again and again; all but search where there is none")
    runs.add_argument("--seeds", type=int, default=3)
    runs.add_argument("--evaluations", type=int, default=BUDGETS[-1])
    runs.add_argument("--count", type=int, default=0, help="graphs at most, the first by digest; 0: all")
    runs.add_argument("--reference-seconds", type=float, default=REFERENCE, help="of the reference for a graph")
    runs.set_defaults(function=run)
    show = parts.add_parser("tables")
    show.set_defaults(function=tables)
    alone = parts.add_parser("single")
    alone.add_argument("graphs", type=Path, help="folder of suites")
    alone.add_argument("--method", action="append", required=True, help="uniform, untrained, ppo, NAME=FILE; again and again")
    alone.set_defaults(function=single)
    draw = parts.add_parser("chart")
    draw.add_argument("curves", type=Path, nargs="+")
    draw.add_argument("--output", type=Path, required=True)
    draw.set_defaults(function=chart)
    alone.add_argument("--page", type=Path, help="write into it")
    for each in (show, alone):
        each.add_argument("--as", dest="name", help="name of the tables, and of the markers on the page")
    for each in (runs, show, alone):
        each.add_argument("--folder", type=Path, required=True)
        each.add_argument("--machine", default="se", help="name, or path of a machine file")
        each.add_argument("--max-delay", type=delay_of, help="clocks that a value may wait, or unlimited (default)")
        each.add_argument("--least", type=int, default=0, help="only graphs of more instructions")
        each.add_argument("--most", type=int, default=40, help="only graphs of no more instructions")
        each.add_argument("--only", action="append", metavar="GRAPH", help="only graphs of this name; again and again")
        each.add_argument("--first", choices=["ii", "latency"], default="ii", help="what counts first")
    for each in (runs, show):
        each.add_argument("--seconds", type=float, default=0.0, help="of the processor for a run, instead of evaluations")
        each.add_argument("--repair", action="store_true", help="roll-outs repair what was placed, as in the portfolio")
    return parser


def check(arguments: argparse.Namespace) -> None:
    """InputError where methods and setting do not go together."""
    names = getattr(arguments, "method", None) or []
    known = ("reference", *METHODS, *NAMED)
    for name in names:
        if name not in known and "=" not in name:
            raise InputError(f"found the method {name!r}, expected one of {', '.join(known)}, or NAME=FILE")
    if getattr(arguments, "first", "ii") == "latency":
        if other := {"random", "evolution", *NAMED}.intersection(names):
            raise InputError(f"found {', '.join(sorted(other))} with --first latency, expected list or roll-outs")
        if getattr(arguments, "seconds", 0.0) or getattr(arguments, "repair", False):
            raise InputError("found --first latency with --seconds or --repair, expected --evaluations")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        check(arguments)
        arguments.function(arguments)
    except StowplanError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
