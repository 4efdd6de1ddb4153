"""Fitting the roofline to a compiler's own estimates, with and without fast memory.

Every instruction gives two observations: its cycles with everything in slow memory, and with the compiler's plan. The fit is
robust (soft-L1 on the logarithm of modelled over estimated cycles, and on the saving as a share of the cycles), because
estimates of single instructions stray by factors; large instructions weigh more. Amounts are per clock cycle here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from stowplan.errors import InputError
from stowplan.hardware.costs.roofline import CycleTable
from stowplan.hardware.program import Program
from stowplan.hardware.targets import Roofline
from stowplan.hardware.targets.toml_files import BytesPerSecond, ElementsPerSecond, FlopsPerSecond, Picoseconds

Array = NDArray[np.float64]

#: Parameters of every form, in this order: cycles, then amounts a cycle. The bandwidths are in the order of a sample's traffic.
PARAMETERS = ("overhead", "compute", "elementwise", "vector", "slow_read", "slow_write", "fast_read", "fast_write")
_OVERHEAD, _COMPUTE, _ELEMENTS, _VECTOR, _SLOW_READ, _SLOW_WRITE, _FAST_READ, _FAST_WRITE = range(len(PARAMETERS))
_START = np.array([600.0, 2e5, 1e3, 300.0, 300.0, 300.0, 1200.0, 1200.0])

#: Residuals beyond this count linearly, not squared.
_ROBUST_SCALE = 0.2
#: An instruction weighs its cycles to this power; at 0 the many small ones decide, at 1 a handful of large ones.
_WEIGHT_POWER = 0.25


@dataclass(frozen=True)
class Samples:
    """Instructions of some programs; ``N`` instructions, first axis of the observations: all slow, with the plan."""

    modules: tuple[str, ...]
    module: NDArray[np.int64]
    """Shape [N]: number of the instruction's module."""
    weight: Array
    """Shape [N]: how often the instruction runs."""
    flops: Array
    """Shape [N]."""
    elements: Array
    """Shape [N]."""
    traffic: Array
    """Shape [2, N, 4], bytes: slow reads, slow writes, fast reads, fast writes."""
    cycles: Array
    """Shape [2, N], the compiler's estimates."""

    def of_modules(self, chosen: Iterable[int]) -> Samples:
        """The instructions of some modules only."""
        keep = np.isin(self.module, list(chosen))
        return Samples(
            self.modules,
            self.module[keep],
            self.weight[keep],
            self.flops[keep],
            self.elements[keep],
            self.traffic[:, keep],
            self.cycles[:, keep],
        )


def collect(programs: Iterable[tuple[Program, CycleTable]]) -> Samples:
    """Samples from the steps that have both estimates.

    Raises
    ------
    InputError
        No step has both.
    """
    modules, rows, traffic = [], [], []
    for number, (program, table) in enumerate(programs):
        modules.append(program.name.partition("/")[0])
        for step in program.steps:
            found = table.steps.get(step.name)
            if found is None or found.planned is None:
                continue
            moved = np.zeros((2, 4))
            for use in step.uses:
                fast = (use.tensor, use.is_output) in found.fast
                moved[0, int(use.is_output)] += use.bytes
                moved[1, 2 * fast + use.is_output] += use.bytes
            traffic.append(moved)
            rows.append((number, step.weight, step.flops, step.elementwise, found.slow, found.planned))
    if not rows:
        raise InputError("found no step with two estimates, expected some")
    columns = np.array(rows, dtype=np.float64).T
    return Samples(
        modules=tuple(modules),
        module=columns[0].astype(np.int64),
        weight=columns[1],
        flops=columns[2],
        elements=columns[3],
        traffic=np.stack(traffic, axis=1),
        cycles=columns[4:6],
    )


def _sum(compute: Array, slow: Array, fast: Array) -> Array:
    return np.maximum(compute, slow + fast)


def _overlap(compute: Array, slow: Array, fast: Array) -> Array:
    return np.maximum(compute, np.maximum(slow, fast))


def _serial(compute: Array, slow: Array, fast: Array) -> Array:
    return compute + slow + fast


@dataclass(frozen=True)
class Form:
    """A shape of the roofline: how computation, slow and fast traffic combine, and which parameters are one."""

    combine: Callable[[Array, Array, Array], Array]
    groups: tuple[tuple[int, ...], ...]
    """Parameters that share one fitted value. A parameter in no group is infinite: it costs nothing."""

    def predict(self, samples: Samples, values: Array) -> Array:
        """Modelled cycles, shape [2, N]; ``values`` in the order of :data:`PARAMETERS`."""
        compute = samples.flops / values[_COMPUTE] + samples.elements / values[_ELEMENTS]
        read = samples.traffic[0, :, 0] / values[_VECTOR]
        compute = np.where(samples.flops > 0, compute, np.maximum(compute, read))
        slow = samples.traffic[..., :2] @ (1 / values[_SLOW_READ : _SLOW_WRITE + 1])
        fast = samples.traffic[..., 2:] @ (1 / values[_FAST_READ : _FAST_WRITE + 1])
        total: Array = values[_OVERHEAD] + self.combine(compute[None, :], slow, fast)
        return total


_WORK = ((_OVERHEAD,), (_COMPUTE,), (_ELEMENTS,))
_SPLIT = (*_WORK, (_VECTOR,), (_SLOW_READ,), (_SLOW_WRITE, _FAST_WRITE), (_FAST_READ,))

#: The forms compared in ``docs/results/costs.md``. The first is the one the roofline model has.
FORMS: dict[str, Form] = {
    "sum": Form(_sum, _SPLIT),
    "sum, fast writes apart": Form(_sum, (*_WORK, (_VECTOR,), (_SLOW_READ,), (_SLOW_WRITE,), (_FAST_READ,), (_FAST_WRITE,))),
    "overlap": Form(_overlap, _SPLIT),
    "serial": Form(_serial, _SPLIT),
    "sum, no vector limit": Form(_sum, (*_WORK, (_SLOW_READ,), (_SLOW_WRITE, _FAST_WRITE), (_FAST_READ,))),
    "sum, no vector limit, R/W alike": Form(_sum, (*_WORK, (_SLOW_READ, _SLOW_WRITE), (_FAST_READ, _FAST_WRITE))),
}


def fit(samples: Samples, form: Form = FORMS["sum"]) -> Array:
    """Parameters of a form that fit the samples best, in the order of :data:`PARAMETERS`; infinite where it has none."""
    fixed = np.full(len(PARAMETERS), np.inf)
    weight = (samples.cycles / np.median(samples.cycles)) ** _WEIGHT_POWER
    saved = samples.cycles[0] - samples.cycles[1]

    def values(logarithms: Array) -> Array:
        full = fixed.copy()
        for group, logarithm in zip(form.groups, logarithms, strict=True):
            full[list(group)] = np.exp(logarithm)
        return full

    def residuals(logarithms: Array) -> Array:
        modelled = form.predict(samples, values(logarithms))
        levels = weight * np.log(modelled / samples.cycles)
        savings = weight[0] * (modelled[0] - modelled[1] - saved) / samples.cycles[0]
        return np.concatenate([levels.ravel(), savings])

    start = np.log([_START[group[0]] for group in form.groups])
    return values(least_squares(residuals, start, loss="soft_l1", f_scale=_ROBUST_SCALE).x)


@dataclass(frozen=True)
class ModuleScore:
    """One module's sums over its instructions, runs counted, in cycles: estimated and modelled."""

    name: str
    instructions: int
    estimated_slow: float
    modelled_slow: float
    estimated_planned: float
    modelled_planned: float
    savings_correlation: float
    """Of modelled with estimated savings over the instructions; NaN where one of them does not vary."""


@dataclass(frozen=True)
class Scores:
    """How well modelled cycles agree with estimated ones."""

    r2: float
    """Of cycles: a few very large instructions decide it."""
    r2_log: float
    """Of the logarithm of cycles."""
    median_relative_error: float
    savings_correlation: float
    """Over all instructions, runs counted."""
    savings_ratio: float
    """All modelled savings over all estimated ones."""
    gain_error: float
    """Root mean square, over modules, of the logarithm of modelled over estimated gain (all slow over plan)."""
    modules: tuple[ModuleScore, ...]


def score(samples: Samples, modelled: Array) -> Scores:
    """Compare modelled cycles, shape [2, N], with the estimates."""
    estimated = samples.cycles
    runs, modelled_runs = samples.weight * estimated, samples.weight * modelled
    saved, modelled_saved = runs[0] - runs[1], modelled_runs[0] - modelled_runs[1]
    modules = []
    for number in np.unique(samples.module):
        own = samples.module == number
        modules.append(
            ModuleScore(
                name=samples.modules[number],
                instructions=int(own.sum()),
                estimated_slow=float(runs[0, own].sum()),
                modelled_slow=float(modelled_runs[0, own].sum()),
                estimated_planned=float(runs[1, own].sum()),
                modelled_planned=float(modelled_runs[1, own].sum()),
                savings_correlation=_correlation(modelled_saved[own], saved[own]),
            )
        )
    gains = [
        np.log((module.modelled_slow / module.modelled_planned) / (module.estimated_slow / module.estimated_planned))
        for module in modules
    ]
    return Scores(
        r2=_r2(estimated, modelled),
        r2_log=_r2(np.log(estimated), np.log(modelled)),
        median_relative_error=float(np.median(np.abs(modelled / estimated - 1))),
        savings_correlation=_correlation(modelled_saved, saved),
        savings_ratio=float(modelled_saved.sum() / saved.sum()),
        gain_error=float(np.sqrt(np.mean(np.square(gains)))),
        modules=tuple(modules),
    )


def _r2(observed: Array, modelled: Array) -> float:
    return float(1 - np.square(observed - modelled).sum() / np.square(observed - observed.mean()).sum())


def _correlation(first: Array, second: Array) -> float:
    if first.std() == 0 or second.std() == 0:
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])


def held_out(samples: Samples, folds: int, form: Form = FORMS["sum"]) -> Array:
    """Modelled cycles, shape [2, N], each module's from a fit that has not seen it; every ``folds``-th module is left out."""
    modelled = np.empty_like(samples.cycles)
    for fold in range(folds):
        left_out = [number for number in range(len(samples.modules)) if number % folds == fold]
        seen = samples.of_modules(set(range(len(samples.modules))) - set(left_out))
        hidden = np.isin(samples.module, left_out)
        modelled[:, hidden] = form.predict(samples.of_modules(left_out), fit(seen, form))
    return modelled


def to_roofline(values: Array, clock: int) -> Roofline:
    """Fitted values, rounded to three digits, as a target's parameters; ``clock`` in hertz.

    Only for forms that fit every parameter.
    """

    def rate(index: int) -> int:
        return _three_digits(values[index] * clock)

    return Roofline(
        slow_read_bandwidth=BytesPerSecond(rate(_SLOW_READ)),
        slow_write_bandwidth=BytesPerSecond(rate(_SLOW_WRITE)),
        fast_read_bandwidth=BytesPerSecond(rate(_FAST_READ)),
        fast_write_bandwidth=BytesPerSecond(rate(_FAST_WRITE)),
        vector_bandwidth=BytesPerSecond(rate(_VECTOR)),
        compute=FlopsPerSecond(rate(_COMPUTE)),
        elementwise=ElementsPerSecond(rate(_ELEMENTS)),
        overhead=Picoseconds(_three_digits(values[_OVERHEAD] * 1e12 / clock)),
    )


def roofline_values(roofline: Roofline, clock: int) -> Array:
    """A target's parameters in the order of :data:`PARAMETERS`, per cycle of ``clock`` hertz."""
    rates = (
        roofline.compute,
        roofline.elementwise,
        roofline.vector_bandwidth,
        roofline.slow_read_bandwidth,
        roofline.slow_write_bandwidth,
        roofline.fast_read_bandwidth,
        roofline.fast_write_bandwidth,
    )
    return np.array([roofline.overhead * clock / 1e12, *(rate / clock for rate in rates)])


def _three_digits(value: float) -> int:
    return int(float(f"{value:.2e}"))


def roofline_toml(roofline: Roofline) -> str:
    """The ``[roofline]`` section of a target file."""
    bandwidths = ("slow_read", "slow_write", "fast_read", "fast_write", "vector")
    lines = [f'{name}_bandwidth = "{getattr(roofline, f"{name}_bandwidth") / 1e9:g} GB/s"' for name in bandwidths]
    lines += [
        f'compute = "{roofline.compute / 1e12:g} Tflop/s"',
        f'elementwise = "{roofline.elementwise / 1e12:g} Telem/s"',
        f'overhead = "{roofline.overhead / 1e6:g} us"',
    ]
    return "[roofline]\n" + "\n".join(lines) + "\n"
