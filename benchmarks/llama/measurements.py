"""How many measurements does the calibration of a machine need, and does the choice of the next one pay?

    python -m benchmarks.llama.measurements [--machines N] [--seed N] [--models NAME ...] [--spilled]

Draws machines with 1 to 3 devices whose speeds are known, and measures them by the model that calibration fits, with noise. A
calibration makes one measurement after the other from the same list, in three orders: as ``calibration.next_measurement``
chooses (what ``stowplan llm calibrate`` does), in the order of the list, or at random. The table has the number of measurements
that it takes until the fitted speeds predict every measurement of the list within 10 % of the truth. For the choice it also has
the number after which it ends by itself, and how far predictions are off then, for the list and for placements that are not in
it: feed-forward weights of some layers on the host, on one device or all. ``--spilled`` adds one measurement for each device to
the list, with all layers on it and all feed-forward weights on the host.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.lib.tables import table
from benchmarks.llama.architectures import write_model
from stowplan.backends.llama import calibration
from stowplan.backends.llama.calibration import Fit, Measurement
from stowplan.backends.llama.flags import CPU
from stowplan.backends.llama.machine import Machine, machine_of
from stowplan.backends.llama.model import LanguageModel, read_model

MODELS = ("llama-3-8b", "qwen-3-30b-a3b", "gemma-3-12b")

#: Relative standard deviation of a measured rate.
NOISE = 0.02

#: Relative error below which a prediction counts as right.
CLOSE = 0.10

#: Measurements that ``stowplan llm calibrate`` makes at most, its default.
MOST = 16

#: Context of the calibration, in tokens.
CONTEXT = 8192

Speeds = dict[tuple[str, str], float]
"""Seconds of a byte, an operation or a layer, by device and term."""

Order = Callable[[Sequence[Measurement]], Measurement | None]
"""The next measurement after those that are done; None for enough."""


@dataclass(frozen=True)
class Drawn:
    """A machine without speeds, and what they are."""

    machine: Machine
    speeds: Speeds


@dataclass(frozen=True)
class Count:
    """What one calibration came to."""

    needed: int | None
    """Measurements until all predictions are close; None where the list was not enough."""
    stopped: int
    """Measurements until the order says that they are enough."""
    error: float
    """The largest relative error of a prediction of the list then."""
    other_error: float
    """The same for placements that are not in the list."""


def drawn(chance: random.Random) -> Drawn:
    """A random machine: speeds are log-uniform."""

    def between(low: float, high: float) -> float:
        return math.exp(chance.uniform(math.log(low), math.log(high)))

    names = [f"CUDA{number}" for number in range(chance.randint(1, 3))]
    devices = [{"name": name, "free_mib": round(between(4000, 40000))} for name in names]
    speeds: Speeds = {}
    for name in (CPU, *names):
        is_host = name == CPU
        weights = between(20e9, 100e9) if is_host else between(150e9, 1800e9)
        cache = between(1e9, weights) if is_host else weights * chance.uniform(0.3, 1.0)
        speeds[name, "weight"], speeds[name, "cache"] = 1 / weights, 1 / cache
        speeds[name, "prompt"] = 1 / (between(0.1e12, 1e12) if is_host else between(10e12, 200e12))
        speeds[name, "layer"] = between(5e-6, 50e-6)
        speeds[name, "hop"] = 0.0 if is_host else between(10e-6, 300e-6)
    return Drawn(machine_of({"host": {"free_mib": 256000}, "device": devices}, "drawn"), speeds)


def seconds(model: LanguageModel, machine: Machine, speeds: Speeds, wanted: Measurement) -> float:
    """Of one token; infinite where a rate is not known, without fixed times that are not."""
    unknown = {"hop": 0.0, "layer": 0.0}
    amounts = calibration.terms_of(model, calibration._placed(model, machine, wanted), wanted)
    return sum(amount * speeds.get(key, unknown.get(key[1], math.inf)) for key, amount in amounts.items())


def worst(model: LanguageModel, one: Drawn, found: Fit, choices: Sequence[Measurement]) -> float:
    """The largest relative error of predictions by a fit."""
    errors = []
    for choice in choices:
        truth = seconds(model, one.machine, one.speeds, choice)
        errors.append(abs(seconds(model, one.machine, found.seconds, choice) / truth - 1.0))
    return max(errors)


def spilling(model: LanguageModel, devices: Sequence[str], part: int) -> tuple[str, ...]:
    """All layers on devices, the feed-forward weights (of a mixture, the experts) of the first ones on the host."""
    numbers, suffix = "|".join(map(str, range(part))), "_exps" if model.experts else ""
    rule = rf"blk\.({numbers})\.ffn_(up|down|gate){suffix}\.weight=CPU"
    return "-ngl", str(len(model.layers)), "-dev", ",".join(devices), "-ot", rule


def others_of(model: LanguageModel, machine: Machine) -> list[Measurement]:
    """Placements that planning chooses from and calibration does not measure."""
    names, count = [device.name for device in machine.devices], len(model.layers) - 1
    used = dict.fromkeys([tuple(names), *((name,) for name in names)])
    return [
        Measurement(spilling(model, devices, part), 0, calibration.GENERATED, depth, 0.0)
        for devices in used
        for part in (count // 3, count)
        for depth in (0, CONTEXT // 2)
    ]


def spilled_of(model: LanguageModel, machine: Machine) -> list[Measurement]:
    """For each device: all layers on it, all feed-forward weights on the host."""
    count = len(model.layers) - 1
    return [Measurement(spilling(model, [device.name], count), 0, calibration.GENERATED, 0, 0.0) for device in machine.devices]


def calibrated(model: LanguageModel, one: Drawn, choices: Sequence[Measurement], order: Order, chance: random.Random) -> Count:
    """Measure in an order until all predictions are close, or nothing is left."""
    done: list[Measurement] = []
    needed: int | None = None
    stopped: tuple[int, float, float] | None = None
    others = others_of(model, one.machine)
    while needed is None or stopped is None:
        left = [choice for choice in choices if not any(calibration._is_same(choice, made) for made in done)]
        wanted = order(done) if left and stopped is None else None
        if wanted is None:
            if stopped is None:
                found = calibration.fit(model, one.machine, done)
                stopped = len(done), worst(model, one, found, choices), worst(model, one, found, others)
            if not left:
                break
            # Counting goes on at random where the order says that it is enough.
            wanted = chance.choice(left)
        rate = 1.0 / (seconds(model, one.machine, one.speeds, wanted) * (1.0 + chance.gauss(0.0, NOISE)))
        done.append(replace(wanted, rate=rate))
        if needed is None and worst(model, one, calibration.fit(model, one.machine, done), choices) <= CLOSE:
            needed = len(done)
    assert stopped is not None
    return Count(needed, *stopped)


def orders(model: LanguageModel, machine: Machine, choices: Sequence[Measurement], chance: random.Random) -> dict[str, Order]:
    """The three orders."""
    shuffled = chance.sample([*choices], len(choices))
    return {
        "next_measurement": lambda done: calibration.next_measurement(model, machine, done, choices),
        "order of the list": lambda done: choices[len(done)] if len(done) < len(choices) else None,
        "random": lambda done: shuffled[len(done)] if len(done) < len(shuffled) else None,
    }


@contextmanager
def remembered() -> Iterator[None]:
    """Compute the amounts of each measurement once, although every fit asks for them."""
    amounts: dict[Any, Any] = {}
    real_placed, real_terms = calibration._placed, calibration.terms_of

    def placed(model: LanguageModel, machine: Machine, one: Measurement) -> tuple[LanguageModel, Machine, Measurement]:
        return model, machine, one

    def terms(model: LanguageModel, where: tuple[LanguageModel, Machine, Measurement], one: Measurement) -> Any:
        key = id(model), id(where[1]), one.words, one.prompt, one.generated, one.depth
        if key not in amounts:
            # The machine is kept too, so that its id stays its own.
            amounts[key] = where[1], real_terms(model, real_placed(*where), one)
        return amounts[key][1]

    with mock.patch.object(calibration, "_placed", placed), mock.patch.object(calibration, "terms_of", terms):
        yield


def compare(model: LanguageModel, machines: int, seed: int, is_spilled: bool = False) -> dict[str, list[Count]]:
    """Counts of each order."""
    found: dict[str, list[Count]] = {}
    for number in range(machines):
        chance = random.Random(seed * 100_003 + number)
        one = drawn(chance)
        choices = calibration.choices_of(model, one.machine, CONTEXT)
        choices += spilled_of(model, one.machine) if is_spilled else []
        for name, order in orders(model, one.machine, choices, chance).items():
            found.setdefault(name, []).append(calibrated(model, one, choices, order, random.Random(number)))
    return found


def quantile(values: Sequence[float], part: float) -> float:
    """The smallest value that so many of all are not above."""
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)]


def row(model: str, order: str, counts: Sequence[Count]) -> list[str]:
    """A row of the table."""
    needed = [math.inf if one.needed is None else one.needed for one in counts]
    is_choice = order == "next_measurement"

    def shown(value: float) -> str:
        return "more than the list" if math.isinf(value) else f"{value:.0f}"

    cells = [
        model,
        order,
        shown(statistics.median(needed)),
        shown(quantile(needed, 0.9)),
        str(sum(count > MOST for count in needed)),
    ]
    if not is_choice:
        return [*cells, "", "", "", ""]
    stopped = [one.stopped for one in counts]
    return [
        *cells,
        f"{statistics.median(stopped):.0f}",
        str(sum(one.error > CLOSE for one in counts)),
        f"{statistics.median(one.other_error for one in counts):.1%}",
        f"{quantile([one.other_error for one in counts], 0.9):.1%}",
    ]


HEAD = (
    "model",
    "order",
    "measurements, median",
    "90th percentile",
    f"more than {MOST}",
    "stops after, median",
    "stops too early",
    "other placements: largest error, median",
    "largest error, 90th percentile",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=60, help="Machines that are drawn.")
    parser.add_argument("--models", nargs="+", default=[*MODELS], help="Names of models.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spilled", action="store_true", help="Also measure placements with weights on the host alone.")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder, remembered():
        for name in arguments.models:
            found = compare(read_model(write_model(name, Path(folder))), arguments.machines, arguments.seed, arguments.spilled)
            rows += [row(name, order, counts) for order, counts in found.items()]
            print(*rows[-3:], sep="\n", file=sys.stderr, flush=True)
    print(table(rows, HEAD))
    return 0


if __name__ == "__main__":
    sys.exit(main())
