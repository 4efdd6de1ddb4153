"""Published pairs of placements: every one can be predicted, nothing of a cell is in its own calibration, and totals add up."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.llama import measurements, published
from benchmarks.llama.architectures import write_model
from benchmarks.llama.published import Factors, Judged, judge, layout, machine_by, parts_of, totals
from benchmarks.llama.published_cells import CELLS, GTX1660, MACHINES, RUNS, SYSTEM_A, Run
from stowplan.backends.llama import calibration
from stowplan.backends.llama.model import read_model
from stowplan.models.llm_placement.problem import HOST


def test_the_table() -> None:
    """Several machines; arms of a cell differ in the placement alone; each has a source."""
    families = Counter(published.family_of(cell.default) for cell in CELLS)
    assert len(families) >= 3
    assert len(CELLS) >= 30
    for cell in CELLS:
        assert cell.source
        other = replace(cell.other, words=cell.default.words, rate=cell.default.rate)
        assert other == cell.default
        assert layout(cell.default) != layout(cell.other)
        assert cell.default.rate > 0 < cell.other.rate


@pytest.mark.parametrize(
    "run",
    [*RUNS, *(run for cell in CELLS for run in (cell.default, cell.other))],
    ids=lambda run: f"{run.machine[:8]} {run.model} {run.depth}",
)
def test_every_placement_is_a_plan(run: Run) -> None:
    memories, spilled = layout(run)
    assert len(memories) == len(spilled) == len(published.language(run.model).layers)
    assert all(part == 0 for memory, part in zip(memories, spilled, strict=True) if memory == HOST)
    assert all(second >= 0 for second in parts_of(run, machine_by(MACHINES[run.machine])))


def test_a_placement_that_no_plan_can_say_is_refused() -> None:
    run = Run(GTX1660, "llama-3-8b", ("-ngl", "99", "-ot", r"blk\.3\.attn_q=CPU"), 0, 1.0)
    with pytest.raises(ValueError, match=r"blk\.3\.attn_q\.weight alone on the host"):
        layout(run)


def test_sizes_of_blocks_are_those_that_the_source_reports() -> None:
    """The source of the GTX 1660 Ti lists MiB of each block of its 9B file."""
    layers = published.language("qwen-3.5-9b").layers
    for numbers, size in (((0, 6, 30), 137.9), ((4, 5, 26), 117.3), ((3, 15, 31), 125.9), ((7, 11, 23), 112.5), ((32,), 795.7)):
        for number in numbers:
            assert layers[number].bytes / (1 << 20) == pytest.approx(size, abs=0.1)


def test_nothing_of_a_cell_is_in_its_calibration() -> None:
    for cell in CELLS:
        for leave in ("cell", "model"):
            for run in published.runs_beside(cell, leave):
                assert run.is_exact
                assert published.family_of(run) == published.family_of(cell.default)
                is_same = (run.model, run.depth) == (cell.default.model, cell.default.depth)
                assert leave == "cell" or run.model != cell.default.model
                assert not is_same or run.words not in {cell.default.words, cell.other.words}


def test_factors_are_found_again() -> None:
    true = Factors(1.4, 18.0, 1.3, 1.0)
    runs = [run for cell in CELLS for run in (cell.default, cell.other) if run.machine == GTX1660]
    told = [replace(run, rate=1 / published.seconds_of(run, machine_by(MACHINES[GTX1660], true))) for run in runs]
    found = published.known("calibrated", MACHINES[GTX1660], told)
    assert found.error is not None
    assert found.error < 0.01
    for run in told:
        assert published.seconds_of(run, found.machine) * run.rate == pytest.approx(1.0, rel=0.01)


def test_calibration_chooses_better_than_data_sheets() -> None:
    by = {method: totals([judge(cell, method) for cell in CELLS]) for method in ("data sheets", "calibrated")}
    assert by["calibrated"].wrong < by["data sheets"].wrong
    assert by["calibrated"].mean_regret < 1.03 < by["data sheets"].mean_regret


def test_totals_of_a_few_cells() -> None:
    cell = next(cell for cell in CELLS if cell.default.machine == SYSTEM_A)
    slow = replace(cell, default=replace(cell.default, rate=10.0), other=replace(cell.other, rate=8.0))
    fast = replace(cell, default=replace(cell.default, rate=10.0), other=replace(cell.other, rate=20.0))
    judged = [Judged(slow, 1.1, 0.2), Judged(fast, 1.5, 0.2), Judged(fast, 0.9, 0.2)]
    never = totals(judged)
    assert (never.cells, never.wrong, never.costly, never.losses) == (3, 2, 2, 1)
    assert never.mean_regret == pytest.approx((1.25 + 1.0 + 2.0) / 3)
    assert (never.worst_regret, never.worst_loss) == (2.0, 0.8)
    careful = totals(judged, None)
    assert (careful.wrong, careful.losses, careful.worst_loss) == (1, 0, 1.0)


@pytest.mark.parametrize("is_spilled", [False, True])
def test_measurements_that_a_calibration_needs(tmp_path: Path, is_spilled: bool) -> None:
    model = read_model(write_model("llama-3-8b", tmp_path))
    one = measurements.drawn(random.Random(3))
    with measurements.remembered():
        counts = measurements.compare(model, 2, 1, is_spilled)
    assert set(counts) == {"next_measurement", "order of the list", "random"}
    choices = len(calibration.choices_of(model, one.machine, measurements.CONTEXT))
    assert choices >= 3
    for found in counts.values():
        assert all(count.needed is None or 3 <= count.needed <= 30 for count in found)
        assert all(count.stopped >= 3 and count.error >= 0 for count in found)
    assert [len(measurements.row(model.name, order, found)) for order, found in counts.items()] == [len(measurements.HEAD)] * 3


def test_quantiles() -> None:
    assert measurements.quantile([3, 1, 2, 5, 4, 6, 7, 8, 9, 10], 0.9) == 9
    assert measurements.quantile([1.0], 0.9) == 1.0
