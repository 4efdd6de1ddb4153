"""Fitting the roofline: known parameters are found again, and the vectorised form is the model's."""

from __future__ import annotations

import random

import numpy as np
import pytest

from benchmarks.lib.costs.calibrate import (
    FORMS,
    Samples,
    collect,
    fit,
    held_out,
    roofline_toml,
    roofline_values,
    score,
    to_roofline,
)
from stowplan.errors import InputError
from stowplan.hardware.costs import CycleTable, StepCycles, make_problem
from stowplan.hardware.program import Program, ProgramStep, ProgramTensor, ProgramUse
from stowplan.hardware.targets import decode_target, load_target

TARGET = load_target("tpu-v4")


def made_up(number: int, steps: int = 150) -> tuple[Program, CycleTable]:
    """A program, and estimates that are exactly what the target's roofline says, to the cycle."""
    rng = random.Random(number)
    tensors = tuple(ProgramTensor(f"t{i}", 1 << 20, True, False) for i in range(4))
    found = []
    for index in range(steps):
        uses = tuple(ProgramUse(tensor, tensor == 3, int(10 ** rng.uniform(3, 8))) for tensor in range(4))
        product = rng.random() < 0.6
        flops, elements = (int(10 ** rng.uniform(6, 11)) if product else 0), int(10 ** rng.uniform(3, 7))
        found.append(ProgramStep(f"s{index}", "fusion", flops, elements, rng.choice((1, 1, 7)), uses))
    program = Program(f"p{number}/main", tuple(found), tensors)
    table = {}
    for step, priced in zip(found, make_problem(program, TARGET).steps, strict=True):
        fast = [rng.random() < 0.5 for _ in step.uses]
        cycles = [round(priced.latency_ps(mask) * TARGET.clock / 1e12) for mask in ([False] * 4, fast)]
        chosen = frozenset((use.tensor, use.is_output) for use, is_fast in zip(step.uses, fast, strict=True) if is_fast)
        table[step.name] = StepCycles(cycles[0], cycles[1], chosen)
    return program, CycleTable(table)


@pytest.fixture(scope="module")
def samples() -> Samples:
    return collect(made_up(number) for number in range(4))


def test_the_vectorised_form_is_the_roofline(samples: Samples) -> None:
    modelled = FORMS["sum"].predict(samples, roofline_values(TARGET.roofline, TARGET.clock))
    assert np.abs(modelled - samples.cycles).max() <= 0.51


def test_known_parameters_are_found_again(samples: Samples) -> None:
    assert fit(samples) == pytest.approx(roofline_values(TARGET.roofline, TARGET.clock), rel=0.02)
    assert to_roofline(fit(samples), TARGET.clock).slow_read_bandwidth == pytest.approx(402e9, rel=0.02)


def test_outliers_do_not_move_the_fit_far(samples: Samples) -> None:
    cycles = samples.cycles.copy()
    cycles[:, ::20] *= 8
    spoilt = Samples(samples.modules, samples.module, samples.weight, samples.flops, samples.elements, samples.traffic, cycles)
    assert fit(spoilt) == pytest.approx(roofline_values(TARGET.roofline, TARGET.clock), rel=0.2)


def test_scores(samples: Samples) -> None:
    perfect = score(samples, samples.cycles)
    assert (perfect.r2, perfect.median_relative_error, perfect.savings_ratio, perfect.gain_error) == (1, 0, 1, 0)
    assert perfect.savings_correlation == pytest.approx(1)
    assert [module.name for module in perfect.modules] == ["p0", "p1", "p2", "p3"]
    halved = score(samples, samples.cycles / 2)
    assert halved.median_relative_error == halved.savings_ratio == 0.5
    assert halved.gain_error == pytest.approx(0)
    assert halved.modules[0].modelled_slow == pytest.approx(halved.modules[0].estimated_slow / 2)


def test_held_out_modules_are_modelled_by_the_others(samples: Samples) -> None:
    modelled = held_out(samples, folds=2)
    seen = fit(samples.of_modules([1, 3]))
    hidden = np.isin(samples.module, [0, 2])
    assert modelled[:, hidden] == pytest.approx(FORMS["sum"].predict(samples.of_modules([0, 2]), seen))
    assert score(samples, modelled).r2_log > 0.999


def test_other_forms_fit_worse_than_the_true_one(samples: Samples) -> None:
    true = score(samples, FORMS["sum"].predict(samples, fit(samples)))
    form = FORMS["sum, no vector limit, R/W alike"]
    values = fit(samples, form)
    assert np.isinf(values[3])
    assert score(samples, form.predict(samples, values)).median_relative_error > true.median_relative_error


def test_the_section_reads_back_as_written() -> None:
    section = roofline_toml(TARGET.roofline)
    text = f"""format = "stowplan.target"
version = 1
name = "x"
description = ""
clock = "1 GHz"
[fast_memory]
capacity = "1 MiB"
alignment = "1 B"
[copies]
in_bandwidth = "1 GB/s"
out_bandwidth = "1 GB/s"
channels = 1
latency = "0 s"
{section}"""
    assert decode_target(text.encode()).roofline == TARGET.roofline


def test_nothing_to_fit_is_refused() -> None:
    program, _ = made_up(0, steps=2)
    with pytest.raises(InputError, match="found no step with two estimates"):
        collect([(program, CycleTable({"s0": StepCycles(5)}))])
