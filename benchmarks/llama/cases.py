"""Recommended placements against those of llama.cpp's ``--fit`` and others, measured in the runtime on virtual devices.

    python -m benchmarks.llama.cases BUILD ORACLE [--cases NAME ...] [--placements N] [--rounds N] [--hop US] [--json FILE]

BUILD is a build folder that ``benchmarks.llama.build`` made, ORACLE the program that it built from oracle.cpp. The devices of
a case are RPC servers that wait as long as their speeds say; scheduler, copies, ``--fit`` and ``llama-bench`` are the runtime's
own. A row has the tokens a second of the placement that ``llama-fit-params`` chooses, of the one that
``stowplan.backends.llama.plan`` recommends, and of the best of all that were measured, a grid of others among them; how many
pairs of placements that are more than 5 % apart are predicted in the wrong order; and predicted over measured rates.
Only generation counts: requests have so long an answer that the prompt hardly takes time.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise, permutations, product
from pathlib import Path
from typing import Any

from benchmarks.lib.tables import table
from benchmarks.llama.architectures import write_model
from benchmarks.llama.rig import Rig
from stowplan.backends.llama import Planned, plan
from stowplan.backends.llama.flags import CPU, command_of, placement_of
from stowplan.backends.llama.lowering import Request, problem_of
from stowplan.backends.llama.machine import MIB, Machine, machine_of
from stowplan.backends.llama.model import Context, LanguageModel, read_model
from stowplan.backends.llama.oracle import Oracle, device_of
from stowplan.models.llm_placement.plan import Plan, fits, plan_of, times_of
from stowplan.models.llm_placement.problem import HOST, Problem

#: Tokens that are computed at once, MiB that stay free on each device, and the error that predictions are said to have.
MICRO_BATCH, MARGIN, ERROR = 128, 8, 0.05

#: The runtime reads whole blocks of so many tokens of the cache.
BLOCK = 256

#: Measured rates that are closer than this are not compared.
APART = 0.05

#: Placements that would be more times slower than the best are not measured: they take long and tell little.
SLOWEST = 6.0

#: Placements that may be the best: so much below it, by prediction or by one measurement.
CLOSE = 0.15

#: Of the grid, so many with the best predictions are measured in any case.
FIRST = 4

#: A virtual device: GB/s of weights, GB/s of the cache, MiB.
Speeds = tuple[float, float, float]


@dataclass(frozen=True)
class Case:
    """Devices, a host and a request."""

    model: str
    devices: tuple[Speeds, ...]
    """In llama.cpp's order."""
    host: tuple[float, float]
    """GB/s of weights and of the cache."""
    depth: int = 0
    """Tokens before those that are generated."""
    context: int = 1024
    about: str = ""
    """What the case is for: ``equal``, ``subset``, ``unlike``, ``long cache``, ``spill``."""

    def request(self) -> Request:
        """A prompt and an answer with as many tokens in the cache, in the mean, as are measured."""
        live = BLOCK * math.ceil((self.depth + 8) / BLOCK)
        generate = min(2 * (live - 1), 2 * (self.context - live))
        return Request(self.context, live - generate // 2, generate)


DENSE, MIXTURE = "tiny-dense", "tiny-moe"

CASES: dict[str, Case] = {
    # One device is faster than the other; one cache is long; a mixture.
    "subset-fits": Case(DENSE, ((1, 1, 760), (4, 4, 760)), (2, 0.2), about="subset"),
    "unequal-fits": Case(DENSE, ((0.8, 0.8, 760), (4, 4, 285)), (2, 0.2), about="unlike"),
    "equal-control": Case(DENSE, ((2, 2, 247), (2, 2, 247)), (1, 0.2), about="equal"),
    "slow-device": Case(DENSE, ((0.5, 0.5, 190), (4, 4, 190)), (2, 0.4), about="unlike"),
    "long-cache": Case(DENSE, ((11, 6, 270),), (3.8, 0.1), 3072, 4096, "long cache"),
    "long-cache-two": Case(DENSE, ((5.7, 3, 143), (11, 6, 175)), (3.8, 0.1), 3072, 4096, "long cache"),
    "moe-subset": Case(MIXTURE, ((0.3, 0.3, 850), (1.5, 1.5, 850)), (0.5, 0.1), about="subset"),
    "moe-spill": Case(MIXTURE, ((1.5, 1.5, 380),), (0.25, 0.05), about="spill"),
    "moe-two": Case(MIXTURE, ((0.4, 0.4, 285), (1.5, 1.5, 228)), (0.15, 0.05), about="spill"),
    # Devices that are equal: there is little to gain.
    "equal-fits": Case(DENSE, ((2, 2, 450), (2, 2, 450)), (1, 0.2), about="equal"),
    "equal-three": Case(DENSE, ((2, 2, 170), (2, 2, 170), (2, 2, 170)), (1, 0.2), about="equal"),
    "equal-moe": Case(MIXTURE, ((0.5, 0.5, 400), (0.5, 0.5, 400)), (0.15, 0.05), about="equal"),
    # The model fits on one device.
    "slow-last": Case(DENSE, ((3, 3, 450), (0.8, 0.8, 450)), (1, 0.2), about="subset"),
    "three-fits-one": Case(DENSE, ((0.8, 0.8, 450), (1.5, 1.5, 450), (3, 3, 450)), (1, 0.2), about="subset"),
    "three-fits-two": Case(DENSE, ((0.7, 0.7, 250), (3, 3, 250), (2, 2, 250)), (0.5, 0.2), about="subset"),
    "moe-slow-last": Case(MIXTURE, ((1, 1, 720), (0.25, 0.25, 720)), (0.25, 0.1), about="subset"),
    # Both are needed.
    "slow-last-needed": Case(DENSE, ((3, 3, 300), (1, 1, 300)), (0.5, 0.2), about="unlike"),
    "slow-first-needed": Case(DENSE, ((0.8, 0.8, 330), (4, 4, 330)), (0.4, 0.2), about="unlike"),
    "slower-than-host": Case(DENSE, ((0.3, 0.3, 320), (3, 3, 320)), (1.5, 0.5), about="unlike"),
    "three-slow-middle": Case(DENSE, ((3, 3, 220), (0.5, 0.5, 220), (3, 3, 220)), (0.5, 0.2), about="unlike"),
    "moe-slow-first": Case(MIXTURE, ((0.15, 0.15, 600), (1, 1, 600)), (0.1, 0.05), about="unlike"),
    # Long caches.
    "long-cache-slow-host": Case(DENSE, ((4, 4, 260),), (1.5, 0.05), 2048, 3072, "long cache"),
    "long-cache-three": Case(DENSE, ((2, 2, 110), (4, 4, 110), (1, 1, 110)), (1.5, 0.1), 2048, 3072, "long cache"),
    "long-cache-subset": Case(DENSE, ((0.8, 0.8, 500), (3, 3, 500)), (1, 0.1), 2048, 3072, "long cache"),
    "long-cache-moe": Case(MIXTURE, ((1, 1, 350),), (0.25, 0.025), 3072, 4096, "long cache"),
    # Parts stay on the host.
    "spill-little": Case(DENSE, ((3, 3, 340),), (1, 0.2), about="spill"),
    "spill-three": Case(DENSE, ((1.5, 1.5, 90), (3, 3, 90), (0.8, 0.8, 90)), (0.8, 0.1), about="spill"),
    "spill-moe-three": Case(MIXTURE, ((1, 1, 170), (0.2, 0.2, 170), (0.5, 0.5, 170)), (0.1, 0.05), about="spill"),
    # The host is faster than some devices.
    "fast-host": Case(DENSE, ((1, 1, 220), (0.5, 0.5, 220)), (3, 2), about="unlike"),
    "fast-host-moe": Case(MIXTURE, ((0.3, 0.3, 360), (0.15, 0.15, 360)), (0.5, 0.3), about="unlike"),
}


@dataclass
class Run:
    """A placement that was measured."""

    kind: str
    """``fit``, ``recommended`` or ``grid``."""
    words: list[str]
    predicted: float | None
    """Tokens a second; None for a placement that plans cannot say."""
    rates: list[float]
    """Tokens a second, measured one after the other."""

    @property
    def rate(self) -> float:
        """The median."""
        return statistics.median(self.rates)


@dataclass
class Outcome:
    """What was measured for a case."""

    name: str
    recommended: str
    reason: str
    is_proven: bool
    is_within: bool
    """Whether the runtime's own bytes of what is recommended leave the margin on each device."""
    runs: list[Run]

    def row(self) -> list[str]:
        """Of the table."""
        fit, mine = self.rate("fit"), self.rate("recommended")
        best = max(self.runs, key=lambda run: run.rate)
        pairs = [
            (one, two)
            for one, two in combinations([run for run in self.runs if run.predicted is not None], 2)
            if abs(one.rate / two.rate - 1) > APART and abs(two.rate / one.rate - 1) > APART
        ]
        wrong = sum(((one.predicted or 0) > (two.predicted or 0)) != (one.rate > two.rate) for one, two in pairs)
        parts = sorted(run.predicted / run.rate for run in self.runs if run.predicted is not None)
        return [
            self.name,
            CASES[self.name].about,
            f"{fit:.2f}",
            f"{mine:.2f}" + (" (fit)" if self.recommended == "fit" else ""),
            f"{best.rate:.2f}",
            f"{mine / best.rate:.3f}",
            f"{mine / fit:.2f}",
            f"{wrong}/{len(pairs)}",
            f"{parts[0]:.2f} to {parts[-1]:.2f}",
            "yes" if self.is_within else "no",
        ]

    def rate(self, kind: str) -> float:
        """Of the first run of a kind."""
        return next(run.rate for run in self.runs if run.kind == kind)


HEAD = [
    "case",
    "about",
    "fit t/s",
    "recommended",
    "best",
    "recommended/best",
    "recommended/fit",
    "ranked wrong",
    "predicted/measured",
]
HEAD += ["fits"]


def hop_microseconds(build: Path, model: Path) -> float:
    """Latency of a transfer: of devices and a host that take no time, with layers of which a part is on the host."""
    fast = {"weights": 1e5, "cache": 1e5, "memory": 4000.0}
    count, spilled = len(read_model(model).layers), 10
    pattern = rf"blk\.({'|'.join(map(str, range(1, 1 + spilled)))})\.ffn_down(_exps)?\.weight=CPU"
    with Rig(build, [fast], fast) as rig:
        words = ["-ngl", str(count), "-dev", "RPC0"]
        rates = (rig.rates(model, [*words, *more], 0, MICRO_BATCH, 16, 9) for more in ([], ["-ot", pattern]))
        without, with_hops = map(statistics.median, rates)
    return 1e6 * (1 / with_hops - 1 / without) / (2 * spilled)


def grid(problem: Problem, limit: int = 4000) -> list[Plan]:
    """Placements that fit, best predictions first: devices in all orders, layers in steps, parts spilled of some layers."""
    count = len(problem.layers)
    step, devices = max(1, count // 8), range(1, len(problem.memories))
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], Plan] = {}
    for order in (order for size in range(len(devices) + 1) for order in permutations(devices, size)):
        for sizes in _sizes(count, len(order), step):
            memories = [HOST] * (count - sum(sizes)) + [
                memory for memory, size in zip(order, sizes, strict=True) for _ in range(size)
            ]
            for some, parts in product(range(0, count, step), (1, 2, 3)) if order else [(0, 0)]:
                # The first layers that are on a device.
                spilled, left = [0] * count, some
                for number, memory in enumerate(memories):
                    if memory != HOST and left and problem.layers[number].spillable:
                        spilled[number], left = min(parts, len(problem.layers[number].spillable)), left - 1
                if (key := (tuple(memories), tuple(spilled))) not in found and fits(problem, memories, spilled, 0):
                    found[key] = plan_of(problem, memories, spilled, 0)
        if len(found) > limit:
            break
    return sorted(found.values(), key=lambda plan: plan.objective)


def _sizes(count: int, devices: int, step: int) -> Iterator[list[int]]:
    """Numbers of layers on each device."""
    if not devices:
        yield []
        return
    for offloaded in dict.fromkeys([count, *range(count - step, 0, -step)]):
        for cuts in combinations(range(step, offloaded, step), devices - 1):
            ends = [0, *cuts, offloaded]
            yield [after - before for before, after in pairwise(ends)]


def spread(plans: Sequence[Plan], count: int) -> list[Plan]:
    """The first ones, and others at equal distances in the order."""
    last = len(plans) - 1
    places = {round(at * last / max(1, count - FIRST)) for at in range(count - FIRST + 1)} | {*range(min(FIRST, len(plans)))}
    return [plans[at] for at in sorted(places)]


def predicted(problem: Problem, placed: Plan) -> float:
    """Tokens a second while it generates."""
    return problem.steps * 1e12 / (placed.objective - times_of(problem, placed).prompt)


def plan_said(problem: Problem, model: LanguageModel, words: Sequence[str]) -> Plan | None:
    """Options as a plan; None where they place tensors as no plan does."""
    names = [device.name for device in problem.memories]
    meant = placement_of(model, words, names[1:], [device.capacity for device in problem.devices])
    memories, spilled = [names.index(device) for device in meant.layers], []
    for layer, device, row in zip(model.layers, meant.layers, problem.layers, strict=True):
        elsewhere = {tensor.name.split(".")[2] for tensor in layer.tensors if meant.tensors[tensor.name] != device}
        suffix = "_exps" if model.experts else ""
        wanted = [f"ffn_{part.name}{suffix}" for part in row.spillable[: len(elsewhere)]]
        others = {meant.tensors[tensor.name] for tensor in layer.tensors} - {device}
        if elsewhere != {*wanted} or not others <= {CPU}:
            return None
        spilled.append(len(elsewhere))
    return plan_of(problem, memories, spilled, 0)


def machine_for(case: Case, hop: float, compute: float) -> Machine:
    """The case's machine, with its true speeds; the link's latency in microseconds, intermediate results in MiB."""
    rows: list[dict[str, Any]] = []
    for number, (weights, cache, memory) in enumerate(case.devices):
        row = {"name": f"RPC{number}", "free_mib": memory, "margin_mib": MARGIN, "weight_gbs": weights, "cache_gbs": cache}
        rows.append({**row, "tflops": 1e6, "link_gbs": 1.0, "link_us": hop, "compute_mib": compute})
    host = {"free_mib": 8000, "weight_gbs": case.host[0], "cache_gbs": case.host[1], "tflops": 1e6}
    return machine_of({"host": host, "device": rows, "calibration": {"error": ERROR}}, "rig")


def compute_mib(oracle: Oracle, rig: Rig, layers: int, context: int) -> float:
    """The largest buffer of intermediate results of a device, of some placements."""
    common = ["-c", str(context), "-ub", str(MICRO_BATCH)]
    every = [[*common, "-ngl", str(layers), "-dev", name] for name in rig.names]
    every += [[*common, "-ngl", str(number), "-ts", ",".join("1" for _ in rig.names)] for number in (layers, layers // 2)]
    sizes = [
        compute
        for answer in oracle.ask(every)
        for buffer, (_, _, compute) in answer.items()
        if device_of(rig.named(buffer)) != CPU
    ]
    return max(sizes) / MIB


def is_within(oracle: Oracle, rig: Rig, machine: Machine, words: Sequence[str]) -> bool:
    """Whether the runtime's bytes of a placement leave the margin on each device."""
    used = dict.fromkeys(rig.names, 0)
    for buffer, sizes in oracle.ask([words])[0].items():
        if (device := device_of(rig.named(buffer))) != CPU:
            used[device] += sum(sizes)
    return all(used[device.name] <= device.free - device.margin for device in machine.devices)


@dataclass
class Prepared:
    """What is measured for a case, and on what."""

    name: str
    path: Path
    machine: Machine
    made: Planned
    runs: list[Run]


def devices_of(case: Case) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Devices and the host, as the rig takes them."""
    devices = [{"weights": weights, "cache": cache, "memory": memory} for weights, cache, memory in case.devices]
    return devices, {"weights": case.host[0], "cache": case.host[1]}


def prepare(name: str, build: Path, program: Path, path: Path, hop: float, placements: int) -> Prepared:
    """The placements of a case: that of ``--fit``, the recommended one, and some of the grid."""
    case, model = CASES[name], read_model(path)
    request = case.request()
    with Rig(build, *devices_of(case)) as rig:
        oracle = Oracle(program, path, rig.servers)
        machine = machine_for(case, hop, compute_mib(oracle, rig, len(model.layers), case.context))
        words = [_named(word, rig) for word in rig.fit(path, case.context, MICRO_BATCH, MARGIN)]
    problem = problem_of(model, machine, request, [MICRO_BATCH])
    own = plan_said(problem, model, words)
    made = plan(
        path, machine, context=request.context, prompt=request.prompt, generate=request.generate, micro_batches=[MICRO_BATCH]
    )
    runs = [Run("fit", words, None if own is None else predicted(problem, own), [])]
    # llama-bench cannot run ``--fit on``, so that the placement that ``--fit`` has made stands for it.
    command = words if made.summary.recommended == "fit" else [*made.summary.command]
    runs += [Run("recommended", command, predicted(problem, made.plan), [])]
    every, context = grid(problem), Context(case.context, micro_batch=MICRO_BATCH)
    every = [one for one in every if one.objective <= SLOWEST * every[0].objective]
    runs += [Run("grid", command_of(problem, one, context), predicted(problem, one), []) for one in spread(every, placements)]
    return Prepared(name, path, machine, made, runs)


def measure(prepared: Prepared, build: Path, program: Path, rounds: int) -> Outcome:
    """Measure a case: all placements once, and those that may be the best in as many rounds as there are, in turns."""
    case, runs, summary = CASES[prepared.name], prepared.runs, prepared.made.summary
    with Rig(build, *devices_of(case)) as rig:
        for run in runs:
            run.rates += rig.rates(prepared.path, rig.raw(run.words), case.depth, MICRO_BATCH)
        best = max(run.rate for run in runs)
        close = [run for run in runs[2:] if max(run.predicted or 0, run.rate) >= (1 - CLOSE) * best][:FIRST]
        for run in [*runs[:2], *close] * (rounds - 1):
            run.rates += rig.rates(prepared.path, rig.raw(run.words), case.depth, MICRO_BATCH)
        # What ``--fit`` places is as large as ``--fit`` lets it be.
        is_fit = summary.recommended == "fit"
        within = is_fit or is_within(Oracle(program, prepared.path, rig.servers), rig, prepared.machine, summary.command)
    return Outcome(prepared.name, summary.recommended, summary.reason, summary.is_proven, within, runs)


def _named(word: str, rig: Rig) -> str:
    """A rule of ``-ot`` with names of devices for those of buffers."""
    rules = [rule.rpartition("=") for rule in word.split(",")]
    return ",".join(pattern + equals + rig.named(buffer) for pattern, equals, buffer in rules)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="Build folder of llama.cpp with the virtual devices.")
    parser.add_argument("oracle", type=Path, help="Program built from oracle.cpp.")
    parser.add_argument("--cases", nargs="+", default=[*CASES], choices=[*CASES], metavar="NAME", help="Names of cases.")
    parser.add_argument("--placements", type=int, default=10, help="Placements of the grid.")
    parser.add_argument("--rounds", type=int, default=2, help="Measurements of those that are compared.")
    parser.add_argument("--hop", type=float, help="Microseconds of a transfer; measured without it.")
    parser.add_argument("--json", type=Path, help="Write all measurements as JSON.")
    arguments = parser.parse_args()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: write_model(name, Path(folder)) for name in sorted({CASES[case].model for case in arguments.cases})}
        hop = arguments.hop or hop_microseconds(arguments.build, next(iter(paths.values())))
        print(f"a transfer takes {hop:.0f} us", file=sys.stderr, flush=True)
        # All before anything is measured: solving would disturb it.
        every = [
            prepare(name, arguments.build, arguments.oracle, paths[CASES[name].model], hop, arguments.placements)
            for name in arguments.cases
        ]
        for prepared in every:
            outcomes.append(measure(prepared, arguments.build, arguments.oracle, arguments.rounds))
            print(*outcomes[-1].row(), sep=" | ", file=sys.stderr, flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps([asdict(one) for one in outcomes], indent=1))
    print(table([outcome.row() for outcome in outcomes], HEAD))
    return 0


if __name__ == "__main__":
    sys.exit(main())
