"""Published measurements of others: does the model of request times choose the faster of two placements?

    python -m benchmarks.llama.published [--leave cell|model] [--margin PART] [--brief]

For each cell of ``published_cells``, both placements are timed with stowplan's own model of request times. What is known of the
machine comes from the other cells of the same machine only (leave one out): factors on the times that data sheets give, for the
weights that the host reads, for its cache, and for the devices. Where nothing else was measured, data sheets are all there is.
Prints a row for each cell, and totals for four ways to know a machine:

- data sheets: bandwidths of RAM and of devices
- calibrated: the three factors above, fitted to relative errors by non-negative least squares that prefer 1 a little
- with transfers: a fourth factor, of the time in which activations move between devices and the host
- calibrate: what ``stowplan llm calibrate`` would find from the same runs

*Abstaining* keeps the default placement unless the predicted gain is larger than the error of the calibration (1.5 times its
largest residual, as ``stowplan llm`` does it), or than a margin of 15 %.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.lib.tables import table
from benchmarks.llama.published_cells import CELLS, MACHINES, RUNS, Cell, Published, Run
from benchmarks.llama.published_models import model_named
from stowplan.backends.llama import calibration
from stowplan.backends.llama.calibration import CAUTION, Measurement
from stowplan.backends.llama.flags import CPU, placement_of
from stowplan.backends.llama.lowering import Request, problem_of
from stowplan.backends.llama.machine import Machine, machine_of
from stowplan.backends.llama.model import LanguageModel, spilled_parts
from stowplan.models.llm_placement.plan import plan_of, times_of
from stowplan.models.llm_placement.problem import HOST, SECOND, Problem
from stowplan.portfolio.llm_placement.fit import fit_plan

#: Weight of a factor's distance from 1 beside a relative error of 1. Small: a host's cache takes 20 times what data sheets say.
PREFERENCE = 0.002

#: Least predicted gain for which a placement other than the default is chosen, in the second rule of abstaining.
MARGIN = 0.15

#: Rates that differ by less than this part count as equal.
LOSS = 0.03

#: Context that a cache is allocated for where the source does not say: a multiple of this many tokens.
STEP = 4096

#: Part of a token's time from which a speed counts as measured.
SEEN = 0.02

METHODS = ("data sheets", "calibrated", "with transfers", "calibrate")


class Factors(NamedTuple):
    """What takes how many times as long as data sheets say."""

    host_weights: float = 1.0
    host_cache: float = 1.0
    device: float = 1.0
    transfers: float = 1.0


#: Data sheets as they are.
SHEETS = Factors()


@dataclass(frozen=True)
class Known:
    """What is known of a machine."""

    machine: Machine
    error: float | None
    """Relative error that predictions are trusted to; None where nothing was measured."""


@dataclass(frozen=True)
class Judged:
    """A cell with its prediction."""

    cell: Cell
    predicted: float
    """Rate of the other arm by that of the default one."""
    error: float | None

    @property
    def measured(self) -> float:
        """Rate of the other arm by that of the default one."""
        return self.cell.other.rate / self.cell.default.rate

    @property
    def is_wrong(self) -> bool:
        """Whether the slower arm is chosen, without abstaining."""
        return (self.predicted > 1.0) != (self.measured > 1.0)

    def kept(self, margin: float | None) -> float:
        """Rate of what is chosen by that of the default arm; ``margin`` as in :func:`totals`."""
        least = margin if margin is not None else self.error
        return self.measured if least is not None and self.predicted > 1.0 + least else 1.0


class Totals(NamedTuple):
    """Of a list of cells."""

    cells: int
    wrong: int
    """Choices of the slower arm; where the default is kept, it may be the slower one too."""
    costly: int
    """Those that are slower by more than :data:`LOSS`."""
    mean_regret: float
    worst_regret: float
    gain: float
    """Geometric mean of the rate by that of the default arm."""
    losses: int
    """Choices that are slower than the default by more than :data:`LOSS`."""
    worst_loss: float
    """The smallest rate by that of the default arm."""


@cache
def _folder() -> Path:
    holder = tempfile.TemporaryDirectory()
    _HOLDERS.append(holder)
    return Path(holder.name)


_HOLDERS: list[tempfile.TemporaryDirectory[str]] = []


@cache
def language(name: str) -> LanguageModel:
    """A model of the cells."""
    return model_named(name, _folder())


def machine_by(published: Published, factors: Factors = SHEETS) -> Machine:
    """A machine by its data sheets, and factors on them. Prompts have no part in generation: their speeds are placeholders."""
    host = {
        "free_mib": 1e6,
        "weight_gbs": published.host_gbs / factors.host_weights,
        "cache_gbs": published.host_gbs / factors.host_cache,
        "tflops": 1.0,
    }
    cards = [
        {
            "name": card.name,
            "free_mib": card.free_mib,
            "weight_gbs": card.gbs / factors.device,
            "tflops": 100.0,
            "link_us": 20.0 * factors.transfers,
        }
        for card in published.cards
    ]
    return machine_of({"host": host, "device": cards}, published.name)


def problem_for(run: Run, machine: Machine) -> Problem:
    """Generation alone: the depth is in the cache, and takes no time."""
    used = run.depth + run.generated
    context = run.context or -(-used // STEP) * STEP
    request = Request(context, run.depth, run.generated, 1, run.cache_type, run.cache_type)
    problem = problem_of(language(run.model), machine, request, (512,))
    batches = tuple(msgspec.structs.replace(batch, batches=0) for batch in problem.micro_batches)
    return msgspec.structs.replace(problem, micro_batches=batches)


@cache
def layout(run: Run) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Memories and spilled parts of a run's placement.

    Raises
    ------
    ValueError
        A plan cannot say the placement.
    """
    published, model = MACHINES[run.machine], language(run.model)
    machine = machine_by(published)
    if not run.words:
        placed = fit_plan(problem_for(run, machine))
        if placed is None:
            raise ValueError(f"{run}: --fit places nothing")
        return placed.memories, placed.spilled
    names = [CPU, *(device.name for device in machine.devices)]
    meant = placement_of(model, run.words, names[1:], [device.free for device in machine.devices])
    memories, spilled = [], []
    for layer, device in zip(model.layers, meant.layers, strict=True):
        on_host = {tensor.name for tensor in layer.tensors if meant.tensors[tensor.name] == CPU}
        parts, count = spilled_parts(layer, model.experts), 0
        if len(on_host) == len(layer.tensors):
            # The cache stays on the device then. Only layers with a small recurrent state are placed so here.
            device, on_host = CPU, set()
        for tensors in parts.values():
            if device == CPU or not all(tensor.name in on_host for tensor in tensors):
                break
            on_host -= {tensor.name for tensor in tensors}
            count += 1
        if on_host:
            raise ValueError(f"{run}: {sorted(on_host)[0]} alone on the host")
        memories.append(names.index(device))
        spilled.append(count)
    return tuple(memories), tuple(spilled)


def parts_of(run: Run, machine: Machine) -> Factors:
    """Seconds of one token by what takes them."""
    problem, (memories, spilled) = problem_for(run, machine), layout(run)
    times = times_of(problem, plan_of(problem, memories, spilled, 0))
    host_cache = sum(
        problem.times(number, memory, 0, None, spilled[number]).caches
        for number, memory in enumerate(memories)
        if memory == HOST
    )
    per_token = SECOND * run.generated
    return Factors(
        times.host_weights / per_token,
        host_cache / per_token,
        (times.device_weights + times.caches - host_cache) / per_token,
        times.transfers / per_token,
    )


@cache
def sheet_parts(run: Run) -> Factors:
    """The same by data sheets."""
    return parts_of(run, machine_by(MACHINES[run.machine]))


def seconds_of(run: Run, machine: Machine) -> float:
    """Predicted seconds of one token."""
    return sum(parts_of(run, machine))


def runs_beside(cell: Cell, leave: str) -> list[Run]:
    """Runs of the machine's family that may be used for a cell: those of no placement of the cell, or of other models."""
    family = family_of(cell.default)
    every = [*RUNS, *(run for one in CELLS for run in (one.default, one.other))]
    held = {_key(cell.default), _key(cell.other)}

    def is_allowed(run: Run) -> bool:
        is_other = run.model != cell.default.model if leave == "model" else _key(run) not in held
        return run.is_exact and family_of(run) == family and is_other

    # A placement that several cells share is one measurement.
    return list(dict.fromkeys(filter(is_allowed, every)))


def family_of(run: Run) -> str:
    """The machine that a run is calibrated with."""
    return MACHINES[run.machine].family or run.machine


def _key(run: Run) -> tuple[object, ...]:
    return family_of(run), run.model, run.words or MACHINES[run.machine], run.depth


def known(method: str, published: Published, runs: Sequence[Run]) -> Known:
    """What a way to know a machine makes of measured runs."""
    if method == "data sheets" or not runs:
        return Known(machine_by(published), None)
    if method == "calibrate":
        return _by_calibration(published, runs)
    rows = np.array([sheet_parts(run) for run in runs])
    measured = np.array([1.0 / run.rate for run in runs])
    free = 4 if method == "with transfers" else 3
    fixed = rows[:, free:].sum(axis=1)
    # Not at the top: it takes long to import.
    from scipy.optimize import nnls

    matrix = np.vstack([rows[:, :free] / measured[:, None], PREFERENCE * np.eye(free)])
    wanted = np.concatenate([1.0 - fixed / measured, np.full(free, PREFERENCE)])
    solution, _ = nnls(matrix, wanted)
    factors = Factors(*np.maximum(solution, 1e-3).tolist())
    errors = rows @ np.array(factors) / measured - 1.0
    return Known(machine_by(published, factors), CAUTION * float(np.abs(errors).max()))


def _by_calibration(published: Published, runs: Sequence[Run]) -> Known:
    """The fit of ``stowplan llm calibrate``: of one model's runs, those with most of them."""
    model = statistics.mode(run.model for run in runs)
    chosen = [run for run in runs if run.model == model and run.machine == runs[0].machine]
    machine = machine_by(published)
    measured = [
        Measurement(_words(run, machine), 0, run.generated, run.depth, run.rate)
        for run in chosen
        if [card.name for card in MACHINES[run.machine].cards] == [card.name for card in published.cards]
    ]
    if not measured:
        return Known(machine, None)
    fitted = calibration.calibrated(machine, calibration.fit(language(model), machine, measured))
    return Known(fitted, fitted.error)


def _words(run: Run, machine: Machine) -> tuple[str, ...]:
    if run.words:
        return run.words
    memories, _ = layout(run)
    return ("-ngl", str(len(memories) - memories.count(HOST)))


def judge(cell: Cell, method: str, leave: str = "cell") -> Judged:
    """Predict a cell from the other runs of its machine."""
    found = known(method, MACHINES[cell.default.machine], runs_beside(cell, leave))
    ratio = seconds_of(cell.default, found.machine) / seconds_of(cell.other, found.machine)
    return Judged(cell, ratio, found.error)


def totals(judged: Sequence[Judged], margin: float | None = 0.0) -> Totals:
    """Totals of predictions.

    Parameters
    ----------
    margin
        The default arm is kept unless the predicted gain is larger; None for the error of the calibration.
    """
    rates = [one.kept(margin) for one in judged]
    regrets = [max(1.0, one.measured) / rate for one, rate in zip(judged, rates, strict=True)]
    return Totals(
        cells=len(judged),
        wrong=sum(regret > 1.0 for regret in regrets),
        costly=sum(regret > 1.0 + LOSS for regret in regrets),
        mean_regret=statistics.fmean(regrets),
        worst_regret=max(regrets),
        gain=math.exp(statistics.fmean(map(math.log, rates))),
        losses=sum(rate < 1.0 - LOSS for rate in rates),
        worst_loss=min(rates),
    )


def rows_of(judged: Sequence[Judged], controls: Sequence[Judged]) -> list[list[str]]:
    """A row of the table for each cell."""
    return [
        [
            one.cell.default.machine,
            one.cell.default.model,
            str(one.cell.default.depth),
            _shown(one.cell.default),
            _shown(one.cell.other),
            f"{one.cell.default.rate:g} / {one.cell.other.rate:g}",
            f"{one.measured:.2f}",
            f"{control.predicted:.2f}",
            f"{one.predicted:.2f}",
            "wrong" if one.is_wrong else "right",
            f"{max(1.0, one.measured) / one.kept(0.0):.2f}",
            "" if one.error is None else f"{one.error:.0%}",
            "other" if one.kept(None) == one.measured else "default",
        ]
        for one, control in zip(judged, controls, strict=True)
    ]


HEAD = (
    "machine",
    "model",
    "depth",
    "default",
    "other",
    "t/s",
    "measured",
    "data sheets",
    "calibrated",
    "choice",
    "regret",
    "error",
    "with abstaining",
)


def _shown(run: Run) -> str:
    if not run.words:
        memories, spilled = layout(run)
        return f"fit: -ngl {len(memories) - memories.count(HOST)}" + (
            f", {sum(map(bool, spilled))} spilled" if any(spilled) else ""
        )
    words = " ".join(word for word in run.words if not word.startswith("blk"))
    if "-ot" not in run.words:
        return words
    pattern = run.words[-1]
    count = pattern.split(")")[0].count("|") + 1
    what = "n-cpu-moe" if "_exps" in pattern else "n-cpu-ffn" if "ffn" in pattern else "layers on the host:"
    return f"{words.removesuffix(' -ot')}, {what} {count}"


SPEEDS_HEAD = (
    "machine",
    "runs",
    "host, weights",
    "host, cache",
    "of the RAM's bandwidth",
    "devices, of their bandwidth",
    "a transfer",
    "largest residual",
)


def speeds() -> list[list[str]]:
    """What all exact runs of each machine say of its speeds; the transfer is of the fit that has it, the rest of the other."""
    rows = []
    for family in dict.fromkeys(family_of(cell.default) for cell in CELLS):
        every = [*RUNS, *(run for cell in CELLS for run in (cell.default, cell.other))]
        runs = [run for run in dict.fromkeys(every) if run.is_exact and family_of(run) == family]
        sheet, found = machine_by(MACHINES[family]), known("calibrated", MACHINES[family], runs)
        transfer = known("with transfers", MACHINES[family], runs).machine.devices[0].link_ps / 1e6
        uses = (
            np.array([[part * run.rate for part in parts_of(run, _same(run, found.machine))] for run in runs]).max(axis=0)
            > SEEN
        )
        host, card, error = found.machine.host, found.machine.devices[0], found.error or 0.0
        weights, cached = (host.weight_rate or 0) / 1e9, (host.cache_rate or 0) / 1e9
        share = (card.weight_rate or 0) / (sheet.devices[0].weight_rate or 1)
        rows.append(
            [
                family,
                str(len(runs)),
                f"{weights:.0f} GB/s" if uses[0] else "",
                f"{cached:.1f} GB/s" if uses[1] else "",
                f"{weights / MACHINES[family].host_gbs:.2f}, {cached / MACHINES[family].host_gbs:.3f}" if uses[1] else "",
                f"{share:.2f}",
                f"{transfer:.0f} us",
                f"{error / CAUTION:.0%}",
            ]
        )
    return rows


def _same(run: Run, machine: Machine) -> Machine:
    """A machine with the devices of a run's, and the speeds of another one of the family."""
    cards = [replace(one, name=card.name) for one, card in zip(machine.devices, MACHINES[run.machine].cards, strict=True)]
    return replace(machine, devices=tuple(cards))


def totals_row(label: str, rule: str, found: Totals) -> list[str]:
    return [
        label,
        rule,
        str(found.cells),
        str(found.wrong),
        str(found.costly),
        f"{found.mean_regret:.3f}",
        f"{found.worst_regret:.2f}",
        f"{found.gain:.3f}",
        str(found.losses),
        f"{found.worst_loss:.2f}",
    ]


TOTALS_HEAD = (
    "machine known by",
    "default kept",
    "pairs",
    "slower chosen",
    f"slower by more than {LOSS:.0%}",
    "mean regret",
    "worst regret",
    "mean gain",
    f"worse than default by {LOSS:.0%}",
    "least gain",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leave", choices=["cell", "model"], default="cell", help="What is left out of the calibration.")
    parser.add_argument("--margin", type=float, default=MARGIN, help="Least predicted gain in the second rule of abstaining.")
    parser.add_argument("--brief", action="store_true", help="Print totals alone.")
    arguments = parser.parse_args()
    judged = {method: [judge(cell, method, arguments.leave) for cell in CELLS] for method in METHODS}
    if not arguments.brief:
        print(table(rows_of(judged["calibrated"], judged["data sheets"]), HEAD), end="\n\n")
        families = [
            totals_row(family, "never", totals([one for one in judged["calibrated"] if family_of(one.cell.default) == family]))
            for family in dict.fromkeys(family_of(cell.default) for cell in CELLS)
        ]
        print(table(families, ("machine, calibrated", *TOTALS_HEAD[1:])), end="\n\n")
        print(table(speeds(), SPEEDS_HEAD), end="\n\n")
    rules = (("never", 0.0), (f"gain below {arguments.margin:.0%}", arguments.margin), ("gain below the error", None))
    rows = [
        totals_row(method, rule, totals(judged[method], margin))
        for method in METHODS
        for rule, margin in rules
        if not (method == "data sheets" and margin is None)
    ]
    best = [max(1.0, one.measured) for one in judged["calibrated"]]
    print(table(rows, TOTALS_HEAD))
    print(
        f"\nThe faster placement of every pair: {math.exp(statistics.fmean(map(math.log, best))):.3f} times the default's rate."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
