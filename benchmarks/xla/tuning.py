"""What tuning XLA gives on a chip, by its own estimates read with care: ways of tuning at equal compiles.

    python -m benchmarks.xla.tuning tpu-v5e --folder DIR --results FILE                        # compile, append to FILE
    python -m benchmarks.xla.tuning tpu-v5e --folder DIR --results FILE --print                # tables of docs/results/xla.md
    python -m benchmarks.xla.tuning all --results FILE --learn stowplan/backends/xla/experience.json --only PROGRAM ...

Programs are those of ``benchmarks/lib/tpu_programs.py``. Every way has ``--compiles`` compiles, XLA's default among them.
Compiles are kept in ``--folder``, lines of results in ``--results``: a run that was interrupted goes on where it was. Needs jax
and libtpu.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.lib import tpu_programs
from benchmarks.lib.places import ROOT
from benchmarks.lib.tables import table
from stowplan.backends.xla import bandit
from stowplan.backends.xla import run as tuning_run
from stowplan.backends.xla.bandit import PREVIEWS_OF_A_COMPILE
from stowplan.backends.xla.compiler import Compiler
from stowplan.backends.xla.entry import tune_workload
from stowplan.backends.xla.evidence import Evidence
from stowplan.backends.xla.experience import EarlierProgram, Experience, shipped
from stowplan.backends.xla.knobs import BETWEEN, DEFAULT, SLICES_OPTION, Knobs, flags_of
from stowplan.backends.xla.process import CompileError
from stowplan.backends.xla.proposals import WAYS as KNOB_WAYS
from stowplan.backends.xla.proposals import draw_order
from stowplan.backends.xla.score import Score
from stowplan.backends.xla.workload import Workload, by_name
from stowplan.errors import StowplanError
from stowplan.hardware.costs.signatures.predictor import Predictor
from stowplan.hardware.costs.signatures.predictor import shipped as shipped_predictor
from stowplan.hardware.targets import load_target, xla_chip

#: Ways of tuning, and whether chance plays a part in them. All but the first are controls; ``random previews`` is the loop with
#: orders by lot alone, whose previews are judged as the loop's; ``flags first`` is the loop that never begins with settings;
#: ``one predictor`` is the loop with v5e's on every chip.
WAYS = {
    "loop": True,
    "one predictor": True,
    "no experience": True,
    "flags first": True,
    "random previews": True,
    "flags": False,
    "random flags": True,
    "random orders": True,
}

#: Compiles within which gains are printed.
WITHIN = (2, 4, 6, 8, 10)

#: Kinds of network, by the first word of a program's name; experience of a program's own family is left out.
FAMILIES = {
    "gpt2": "transformer",
    "gpt": "transformer",
    "bert": "transformer",
    "vit": "transformer",
    "nmt": "lstm",
    "rnn": "lstm",
}


def workload(name: str) -> Workload:
    return by_name(f"benchmarks.lib.tpu_programs:make({name})", search_path=[str(ROOT)], name=name)


def family(name: str) -> str:
    first = name.partition("_")[0]
    return FAMILIES.get(first, first)


def random_knobs(evidence: Evidence, chance: random.Random) -> Knobs:
    """Some tensors to the front and some to the back, by lot; 5 to 50 % of all."""
    return next(draw_order(evidence, evidence.trials[0], chance)).knobs


def control(way: str, chip: str, evidence: Evidence, seed: int) -> Iterator[tuple[str, Callable[[list[Score]], Knobs]]]:
    """Settings of a control with their names, each told the scores so far, the default's first: flags one by one and then pairs
    of the best."""
    named: dict[str, dict[str, Any]] = {name: dict(options) for name, options in flags_of(xla_chip(chip)).items()}
    named.pop("bundle_aware", None)
    named["slices"] = {SLICES_OPTION: "0"}
    chance = random.Random(seed)
    if way == "random orders":
        while True:
            yield way, lambda scores: random_knobs(evidence, chance)
    if way == "random flags":
        while True:
            yield (
                way,
                lambda scores: DEFAULT.with_flags(
                    {key: value for flag in named.values() if chance.random() < 0.5 for key, value in flag.items()}
                ),
            )
    for name, flag in named.items():
        yield name, lambda scores, flag=flag: DEFAULT.with_flags(flag)
    single = [*named.values()]
    for number in range(len(single) * (len(single) - 1) // 2):

        def pair(scores: list[Score], number: int = number) -> Knobs:
            best = sorted(range(len(single)), key=lambda at: scores[1 + at].total)
            pairs = sorted(combinations(range(len(single)), 2), key=sum)
            fitting = [(best[one], best[two]) for one, two in pairs if not single[best[one]].keys() & single[best[two]].keys()]
            one, two = fitting[number % len(fitting)]
            return DEFAULT.with_flags({**single[one], **single[two]})

        yield "pair", pair


@contextmanager
def by_lot_alone() -> Iterator[None]:
    """The loop without flags, and without any way of setting knobs but orders by lot."""
    with (
        patch.object(tuning_run, "WAYS", [way for way in KNOB_WAYS if way.name == "draw"]),
        patch.object(tuning_run, "flags_of", lambda chip: {}),
    ):
        yield


@contextmanager
def flags_first() -> Iterator[None]:
    """The loop where nothing that settings are expected to save comes before flags."""
    with patch.object(bandit, "SETTINGS_KEPT", 0.0):
        yield


#: The ways that are the loop, each with what is changed of it.
LOOPS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "loop": nullcontext,
    "one predictor": nullcontext,
    "no experience": nullcontext,
    "flags first": flags_first,
    "random previews": by_lot_alone,
}


def run(name: str, way: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One line of results."""
    job, chip = workload(name), options.chip
    spent: list[float] = []
    if way in LOOPS:
        known = shipped().without([family(name)]) if way in ("loop", "one predictor", "flags first") else Experience()
        predictor = None
        if way == "one predictor":
            predictor = shipped_predictor("tpu-v5e")
        elif options.predictors:
            predictor = Predictor.load(options.predictors / chip / f"{name}.npz")
        given = {"target": chip, "compiles": options.compiles, "folder": options.folder, "seed": seed}
        with LOOPS[way]():
            tuning = tune_workload(job, **given, experience=known, predictor=predictor)
        trials = [trial for trial in tuning.trials if not trial.error]
        scores = [Score(trial.cycles, trial.stall_cycles, trial.copy_cycles, trial.careful_copy_cycles) for trial in trials]
        ways = [trial.way for trial in trials]
        numbers = [number for number, trial in enumerate(tuning.trials, 1) if not trial.error]
        spent = [at + trial.previews / PREVIEWS_OF_A_COMPILE for at, trial in zip(numbers, trials, strict=True)]
        with Compiler(job, target=chip, folder=options.folder) as compiler:
            compiled = compiler.compile({})
            evidence = Evidence(compiled, load_target(chip))
            features = [*evidence.features(evidence.add(DEFAULT, compiled))]
    else:
        with Compiler(job, target=chip, folder=options.folder) as compiler:
            compiled = compiler.compile({})
            if compiled.error:
                raise CompileError(f"{name}: {compiled.error}")
            evidence = Evidence(compiled, load_target(chip))
            default = evidence.add(DEFAULT, compiled)
            features, scores, ways = [*evidence.features(default)], [default.score], ["default"]
            for _, (label, knobs) in zip(range(options.compiles - 1), control(way, chip, evidence, seed), strict=False):
                ways.append(label)
                tried = compiler.compile(knobs(scores).compiler_options())
                own = (
                    evidence if tried.program_path.read_bytes() == evidence.program_text else Evidence(tried, load_target(chip))
                )
                # What is refused counts as a compile that gave nothing.
                scores.append(scores[0] if tried.error else own.add(DEFAULT, tried).score)
    return {
        "program": name,
        "chip": chip,
        "way": way,
        "seed": seed,
        "compiles": options.compiles,
        "totals": [score.total for score in scores],
        "estimated": [score.cycles + score.stall_cycles for score in scores],
        "without copies": [score.total - score.careful_copy_cycles for score in scores],
        "ways": ways,
        "spent": spent or [*range(1, len(scores) + 1)],
        "features": features,
    }


def gain(line: dict[str, Any], key: str = "totals", compiles: int | None = None) -> float:
    """Percent of the default's that the best trial within some compiles (all that the run had), by its careful total, saves by
    another count. Previews count as their part of a compile; what they push beyond that many is left out."""
    most = compiles or line["compiles"]
    within = [total for total, spent in zip(line["totals"], line["spent"], strict=True) if spent <= most]
    best = within.index(min(within))
    values: list[int] = line[key]
    return 100 * (1 - values[best] / values[0])


def print_tables(lines: list[dict[str, Any]]) -> None:
    """For each chip the programs' gains, seeds averaged, and the most that any run saved; and means within fewer compiles."""
    for chip in sorted({line["chip"] for line in lines}):
        ours = [line for line in lines if line["chip"] == chip]
        ways = [way for way in WAYS if any(line["way"] == way for line in ours)]
        rows, most, curves = [], list[float](), dict[str, list[list[float]]]()
        for name in sorted({line["program"] for line in ours}, key=lambda name: (name in tpu_programs.HELD_OUT, name)):
            row = [name, "yes" if name in tpu_programs.HELD_OUT else ""]
            for way in ways:
                of_way = [line for line in ours if (line["program"], line["way"]) == (name, way)]
                row.append(f"{statistics.mean(map(gain, of_way)):.2f}" if of_way else "")
                if way == "loop":
                    counts = ("estimated", "without copies")
                    row += [f"{statistics.mean(gain(line, key) for line in of_way):.2f}" if of_way else "" for key in counts]
                if of_way:
                    curve = [statistics.mean(gain(line, compiles=count) for line in of_way) for count in WITHIN]
                    curves.setdefault(way, []).append(curve)
            most.append(max(gain(line) for line in ours if line["program"] == name))
            rows.append([*row, f"{most[-1]:.2f}"])
        heads = [head for way in ways for head in ((way, "as XLA counts copies", "no copies") if way == "loop" else (way,))]
        print(f"\n{chip}\n\n{table(rows, ['program', 'held out', *heads, 'any'])}\n")
        print(f"any: mean {statistics.mean(most):.2f}\n")
        means = [
            [way, str(len(of_way)), *(f"{statistics.mean(column):.2f}" for column in zip(*of_way, strict=True))]
            for way, of_way in curves.items()
        ]
        print(table(means, ["mean", "programs", *(f"within {count}" for count in WITHIN)]))


def learn(lines: list[dict[str, Any]]) -> Experience:
    """How often each way won on each program and chip, all runs of the loop and of single flags together."""
    programs: dict[tuple[str, str], EarlierProgram] = {}
    first_settings = dict[tuple[str, str], list[float]]()
    for line in lines:
        if not line["features"] or line["way"] not in ("loop", "flags"):
            continue
        key = line["chip"], line["program"]
        ways, gains = (dict(programs[key].ways), dict(programs[key].gains)) if key in programs else ({}, {})
        best, has_setting = line["totals"][0], False
        flags = flags_of(xla_chip(line["chip"]))
        for name, total in zip(line["ways"][1:], line["totals"][1:], strict=True):
            # Previews tell which way of setting knobs; what is learned is when a flag is worth its compile.
            if line["way"] == "flags" and name not in flags:
                continue
            if name == BETWEEN:
                best = min(best, total)
                continue
            way = name if name in flags else "knobs"
            if line["way"] == "flags":
                gains[way] = round(1 - total / line["totals"][0], 4)
            elif way == "knobs" and not has_setting:
                has_setting = True
                first_settings.setdefault(key, []).append((best - total) / line["totals"][0])
                gains[way] = round(statistics.mean(first_settings[key]), 4)
            wins, tries = ways.get(way, (0, 0))
            ways[way] = wins + (total < 0.999 * best), tries + 1
            best = min(best, total)
        rounded = tuple(round(feature, 3) for feature in line["features"])
        programs[key] = EarlierProgram(
            family=family(key[1]),
            target=key[0],
            features=rounded,
            ways=dict(sorted(ways.items())),
            gains=dict(sorted(gains.items())),
        )
    return Experience(programs=tuple(programs[key] for key in sorted(programs)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chip", help="name of a target, or 'all' to print or to learn from all")
    parser.add_argument("--folder", type=Path, help="where compiles are kept")
    parser.add_argument("--results", type=Path, required=True, help="lines of results, appended to")
    parser.add_argument("--predictors", type=Path, help="of CHIP/PROGRAM.npz, where nothing was learned of the program")
    parser.add_argument("--only", nargs="*", help="programs, instead of all")
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--seeds", type=int, default=3, help="seeds of what has chance in it (default: %(default)s)")
    parser.add_argument("--compiles", type=int, default=10, help="compiles of each way (default: %(default)s)")
    parser.add_argument("--print", action="store_true", help="print the tables of what is there, compile nothing")
    parser.add_argument("--learn", type=Path, metavar="FILE", help="write what the runs teach, compile nothing")
    options = parser.parse_args()
    names = options.only or [*tpu_programs.DEVELOPMENT, *tpu_programs.HELD_OUT]
    lines = [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.exists() else []
    if options.print or options.learn:
        lines = [line for line in lines if options.chip in ("all", line["chip"]) and line["program"] in names]
        if options.print:
            print_tables([line for line in lines if line["compiles"] == options.compiles])
        else:
            learn(lines).save(options.learn)
        return
    done = {
        (line["program"], line["chip"], line["way"], line["seed"]) for line in lines if line["compiles"] == options.compiles
    }
    for seed in range(options.seeds):
        for way in options.ways:
            for name in names:
                if (name, options.chip, way, seed) in done or (seed and not WAYS[way]):
                    continue
                try:
                    line = run(name, way, seed, options)
                except StowplanError as error:
                    print(error, file=sys.stderr, flush=True)
                    continue
                with options.results.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(f"{options.chip}, {name}, {way}, seed {seed}: {gain(line):.2f} %", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
