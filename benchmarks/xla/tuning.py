"""What steering XLA's memory-space assignment gives, by XLA's own estimates: each way of steering at equal compiles.

    python -m benchmarks.xla.tuning CORPUS --folder DIR --results FILE              # compile and append to FILE
    python -m benchmarks.xla.tuning CORPUS --folder DIR --results FILE --print      # the tables of docs/results/xla.md

CORPUS has ``dump/workloads.py``, the JAX functions, and ``tpu_v4``, which names them. Every way has ``--compiles`` compiles,
XLA's default and all in slow memory among them; ways that propose one steer have three. Compiles are kept in ``--folder``,
lines of results in ``--results``: a run that was interrupted goes on where it was. Needs jax and libtpu.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.lib.places import ROOT
from stowplan.backends.xla.compiler import CompileError, Compiler
from stowplan.backends.xla.evidence import Evidence
from stowplan.backends.xla.loop import tune_workload
from stowplan.backends.xla.proposals import harm_last, plan_first, planned
from stowplan.backends.xla.steer import ALL_SLOW, DEFAULT, Steer
from stowplan.backends.xla.workload import Workload, by_name
from stowplan.errors import StowplanError, TimeLimitError
from stowplan.hardware.costs.signatures import Predictor
from stowplan.hardware.targets import load_target

#: Ways of steering, and whether chance plays a part in them.
WAYS = {
    "random": True,
    "harm last": False,
    "plan first, roofline": False,
    "plan first, table": False,
    "plan first, signatures": False,
    "loop": True,
}


def workload(corpus: Path, name: str) -> Workload:
    return by_name(
        "benchmarks.xla.workloads:make",
        factory=True,
        factory_arguments=[name],
        search_path=[str(ROOT), str(corpus / "dump")],
        name=name,
    )


def random_steer(evidence: Evidence, chance: random.Random) -> Steer:
    """The control: some tensors to the front and some to the back, by lot; 5 to 50 % of all."""
    share = chance.uniform(0.05, 0.5)
    sides = {tensor: chance.random() < 0.5 for tensor in sorted(evidence.values) if chance.random() < share}
    return DEFAULT.moved(
        first=evidence.names(tensor for tensor, side in sides.items() if side),
        last=evidence.names(tensor for tensor, side in sides.items() if not side),
    )


def steers(way: str, evidence: Evidence, options: argparse.Namespace, seed: int) -> Iterator[Steer]:
    """What a way tries after the default and all in slow memory."""
    default, slow = evidence.trials[0], evidence.trials[1]
    if way == "random":
        chance = random.Random(seed)
        for _ in range(options.compiles - 2):
            yield random_steer(evidence, chance)
    elif way == "harm last":
        yield harm_last(evidence, default, slow)
    else:
        model: Any = way.rpartition(" ")[2]
        yield plan_first(evidence, planned(evidence, model, random.Random(seed)).tensors)


def run(name: str, way: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One line of results."""
    known = options.predictors and options.predictors / f"{name}.npz"
    predictor = Predictor.load(known) if known else None
    job = workload(options.corpus, name)
    if way == "loop":
        tuning = tune_workload(
            job, compiles=options.compiles, folder=options.folder, seed=seed, predictor=predictor, time_limit=options.limit
        )
        totals = [trial.total for trial in tuning.trials if not trial.error]
        ways = [trial.way for trial in tuning.trials if not trial.error]
        first, stalls = tuning.default, tuning.default.stall_cycles
        seconds = first.processor_seconds
    else:
        with Compiler(job, folder=options.folder, compile_limit=options.limit) as compiler:
            compiled = compiler.compile(DEFAULT.compiler_options())
            if compiled.error:
                raise CompileError(f"{name}: {compiled.error}")
            evidence = Evidence(compiled, load_target("tpu-v4"), predictor=predictor)
            evidence.add(DEFAULT, compiled)
            evidence.add(ALL_SLOW, compiler.compile(ALL_SLOW.compiler_options()))
            for steer in steers(way, evidence, options, seed):
                tried = compiler.compile(steer.compiler_options())
                if not tried.error:
                    evidence.add(steer, tried)
            totals = [trial.score.total for trial in evidence.trials]
            ways = []
            stalls, seconds = evidence.trials[0].score.stall_cycles, compiled.record.processor_seconds
    return {
        "module": name,
        "way": way,
        "seed": seed,
        "compiles": options.compiles,
        "totals": totals,
        "ways": ways,
        "stalls": stalls,
        "processor_seconds": seconds,
    }


def gain(line: dict[str, Any]) -> float:
    """Percent of the default's cycles and stalls that the best trial saves."""
    totals: list[int] = line["totals"]
    return 100 * (1 - min(totals) / totals[0])


def print_tables(lines: list[dict[str, Any]], most_seconds: float) -> None:
    modules = {line["module"]: line for line in lines}
    cheap = [name for name, line in modules.items() if line["processor_seconds"] < most_seconds]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines:
        found.setdefault((line["module"], line["way"]), []).append(line)
    ways = [way for way in WAYS if any((name, way) in found for name in cheap)]
    print(f"| module | default, Mcycles | of it stalls | all in slow memory | {' | '.join(ways)} |")
    print(f"|---|{'--:|' * (3 + len(ways))}")
    for name in sorted(cheap):
        line = modules[name]
        default, slow = line["totals"][0], line["totals"][1]
        cells = [_cell(found.get((name, way), []), gain) for way in ways]
        stalls = f"{100 * line['stalls'] / default:.2f} %"
        print(f"| {name} | {default / 1e6:.3f} | {stalls} | {slow / default:.2f} | {' | '.join(cells)} |")
    for title, measure in _SUMMARIES.items():
        cells = []
        for way in ways:
            gains = [statistics.mean(map(gain, found[name, way])) for name in cheap if (name, way) in found]
            value = measure(gains) if gains else ""
            cells.append(f"{value:.2f}" if isinstance(value, float) else str(value))
        print(f"| **{title}** | | | | {' | '.join(cells)} |")
    print(f"| **modules** | | | | {' | '.join(str(sum((name, way) in found for name in cheap)) for way in ways)} |")
    print("\nWhat the best trial of the loop was: " + _shares(found, cheap))
    print("\nTrials of the loop that were better than all before: " + _wins(found, cheap))


def _cell(lines: list[dict[str, Any]], measure: Callable[[dict[str, Any]], float]) -> str:
    values = [measure(line) for line in lines]
    if not values:
        return ""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


_SUMMARIES: dict[str, Callable[[list[float]], float]] = {
    "mean gain, %": statistics.mean,
    "median gain, %": statistics.median,
    "best gain, %": max,
    "improved by more than 0.05 %": lambda gains: sum(gain > 0.05 for gain in gains),
}


def _shares(found: dict[tuple[str, str], list[dict[str, Any]]], cheap: list[str]) -> str:
    count: dict[str, int] = {}
    for name in cheap:
        for line in found.get((name, "loop"), []):
            best = line["ways"][line["totals"].index(min(line["totals"]))]
            count[best] = count.get(best, 0) + 1
    return ", ".join(f"{way} {number}" for way, number in sorted(count.items(), key=lambda item: -item[1]))


def _wins(found: dict[tuple[str, str], list[dict[str, Any]]], cheap: list[str]) -> str:
    tries: dict[str, list[bool]] = {}
    for name in cheap:
        for line in found.get((name, "loop"), []):
            best = line["totals"][0]
            for way, total in zip(line["ways"][2:], line["totals"][2:], strict=True):
                tries.setdefault(way, []).append(total < best)
                best = min(best, total)
    return ", ".join(f"{way} {sum(wins)} of {len(wins)}" for way, wins in sorted(tries.items(), key=lambda item: -sum(item[1])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--folder", type=Path, required=True, help="where compiles are kept")
    parser.add_argument("--results", type=Path, required=True, help="lines of results, appended to")
    parser.add_argument("--only", nargs="*", help="modules, instead of all of the corpus")
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--seeds", type=int, default=3, help="seeds of what has chance in it (default: %(default)s)")
    parser.add_argument("--compiles", type=int, default=10, help="compiles of each way (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds that a loop, or a compile, may take")
    parser.add_argument("--most", type=float, default=90.0, help="leave out modules whose default takes more processor seconds")
    parser.add_argument(
        "--predictors", type=Path, help="predictors that learned nothing of a module, by its name (latency_tables.py --parts)"
    )
    parser.add_argument("--print", action="store_true", help="print the tables of what is there, compile nothing")
    options = parser.parse_args()
    names = options.only or sorted(path.name.partition(".")[0] for path in (options.corpus / "tpu_v4").glob("*.hlo.txt.gz"))
    lines = [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.exists() else []
    if options.print:
        # A run that was made twice counts once.
        last = {(line["module"], line["way"], line["seed"]): line for line in lines if line["module"] in names}
        print_tables(list(last.values()), options.most)
        return
    done = {(line["module"], line["way"], line["seed"]) for line in lines if line["compiles"] == options.compiles}
    slow = {line["module"] for line in lines if line["processor_seconds"] > options.most}
    for way in options.ways:
        for seed in range(options.seeds if WAYS[way] else 1):
            for name in names:
                if (name, way, seed) in done or name in slow:
                    continue
                try:
                    line = run(name, way, seed, options)
                except TimeLimitError as error:
                    slow.add(name)
                    print(error, file=sys.stderr, flush=True)
                    continue
                except StowplanError as error:
                    print(error, file=sys.stderr, flush=True)
                    continue
                if line["processor_seconds"] > options.most:
                    slow.add(name)
                with options.results.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(f"{name}, {way}, seed {seed}: {gain(line):.2f} %", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
