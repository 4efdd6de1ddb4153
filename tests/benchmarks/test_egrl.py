"""Runs of ``benchmarks/egrl/paper.py``: what is kept, what is counted, and the tables of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import benchmarks.egrl.charts
import benchmarks.egrl.methods
import benchmarks.egrl.paper
import benchmarks.egrl.runs
import benchmarks.egrl.tables
import benchmarks.lib.runs
import benchmarks.lib.tables
from stowplan.errors import InputError
from stowplan.hardware.nnp_i.chip import Chip
from stowplan.portfolio.tier_placement import arrays, heuristics
from tests.models.tier_placement.cases import random_problem
from tests.paths import ROOT


def record(method: str, seed: int, speedup: float, **changes: Any) -> Any:
    """A record of a made-up run: half the speedup at once, all of it after 100 evaluations."""
    values: dict[str, Any] = {
        "network": "resnet50",
        "precision": "int8",
        "method": method,
        "seed": seed,
        "noise": 0.0,
        "evaluations": 200,
        "config": None,
        "code": "",
        "problem": "",
        "compiler_ps": 1_000_000,
        "latency_ps": round(1_000_000 / speedup) if speedup else None,
        "measured": speedup,
        "points": [(3, speedup / 2), (100, speedup)] if speedup else [],
        "seconds": 2.0,
        "weight_tiers": [],
        "output_tiers": [],
        **changes,
    }
    return benchmarks.egrl.runs.Record(**values)


def test_a_run_is_made_once(tmp_path: Path) -> None:
    runs, made = benchmarks.egrl.runs, []

    def perform(run: Any) -> Any:
        made.append(run.seed)
        return record(run.method, run.seed, 1.5), {"near": np.zeros((1, 2, 2), np.int8)}

    wanted = [benchmarks.egrl.methods.run_of("egrl", "resnet50", "int8", seed, 200) for seed in range(3)]
    shown: list[str] = []
    assert benchmarks.lib.runs.make_all(wanted[:2], tmp_path, perform, shown.append) == 0
    assert made == [0, 1]
    assert benchmarks.lib.runs.make_all(wanted, tmp_path, perform, shown.append) == 0
    assert made == [0, 1, 2]
    assert len(shown) == 3
    assert [found.seed for found in runs.finished(wanted, tmp_path)] == [0, 1, 2]
    assert benchmarks.lib.runs.arrays_of(wanted[0].file(tmp_path))["near"].shape == (1, 2, 2)
    assert benchmarks.lib.runs.outlook(wanted, tmp_path, runs.Record).startswith(
        f"3 runs, 3 of them in {tmp_path}, 0 to be done"
    )


def test_other_configurations_are_other_runs(tmp_path: Path) -> None:
    run_of = benchmarks.egrl.methods.run_of
    files = {
        run_of(*what).file(tmp_path)
        for what in (
            ("egrl", "resnet50", "int8", 0, 200),
            ("egrl", "resnet50", "int8", 0, 300),
            ("egrl", "resnet50", "int8", 1, 200),
            ("egrl", "resnet50", "fp16", 0, 200),
            ("egrl", "resnet50", "int8", 0, 200, 0.05),
            ("no_seeding", "resnet50", "int8", 0, 200),
        )
    }
    assert len(files) == 6
    # The same method with one other field is another run, though it is called the same.
    run = run_of("egrl", "resnet50", "int8", 0, 200)
    changed = benchmarks.egrl.runs.Run("resnet50", "int8", "egrl", 0, 200, 0.0, run.config.changed(entropy=0.5))
    assert changed.file(tmp_path) not in files


def test_every_method_has_a_run(tmp_path: Path) -> None:
    methods = benchmarks.egrl.methods
    known = methods.METHODS | methods.VARIANTS
    configs = {method: methods.run_of(method, "resnet50", "int8", 0, 200).config for method in known}
    trained = [config for config in configs.values() if config is not None]
    assert all(config.evaluations == 200 for config in trained)
    # Two variants of one configuration would be one run under two names.
    assert all(left != right for at, left in enumerate(trained) for right in trained[:at])


def test_a_killed_run_is_begun_anew(tmp_path: Path) -> None:
    run = benchmarks.egrl.methods.run_of("egrl", "resnet50", "int8", 0, 200)

    def killed(_: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        benchmarks.lib.runs.make_all([run], tmp_path, killed, print)
    assert list(tmp_path.iterdir()) == []
    perform = lambda run: (record(run.method, run.seed, 1.5), {})  # noqa: E731
    assert benchmarks.lib.runs.make_all([run], tmp_path, perform, print) == 0
    assert run.file(tmp_path).exists()


def test_a_run_that_fails_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (benchmarks.egrl.methods.run_of("ea", "resnet50", "int8", seed, 200) for seed in range(2))

    def perform(run: Any) -> Any:
        if run is first:
            raise ValueError("what went wrong")
        return record(run.method, run.seed, 1.5), {}

    shown: list[str] = []
    assert benchmarks.lib.runs.make_all([first, second], tmp_path, perform, shown.append) == 1
    assert [found.seed for found in benchmarks.egrl.runs.finished([first, second], tmp_path)] == [1]
    assert shown[0] == "resnet50 int8, ea, seed 0: failed"
    assert "what went wrong" in capsys.readouterr().err


def test_a_run_that_another_process_has_in_hand_is_left_to_it(tmp_path: Path) -> None:
    pytest.importorskip("fcntl", reason="needs locks of POSIX")
    runs = benchmarks.egrl.runs
    first, second = (benchmarks.egrl.methods.run_of("ea", "resnet50", "int8", seed, 200) for seed in range(2))
    perform = lambda run: (record(run.method, run.seed, 1.5), {})  # noqa: E731
    with benchmarks.lib.runs.claim(first.file(tmp_path)) as mine:
        assert mine
        assert benchmarks.lib.runs.make_all([first, second], tmp_path, perform, print) == 0
    assert [found.seed for found in runs.finished([first, second], tmp_path)] == [1]


def test_points_of_a_run() -> None:
    tables, found = benchmarks.egrl.tables, record("egrl", 0, 1.6)
    assert [tables.best_at(found, used) for used in (2, 3, 99, 100, 4000)] == [0.0, 0.8, 0.8, 1.6, 1.6]


def test_tables_of_runs() -> None:
    tables = benchmarks.egrl.tables
    found = [record("egrl", seed, speedup) for seed, speedup in enumerate((1.25, 1.6))]
    found += [record("ea", seed, 1.0) for seed in range(2)]
    found += [record("pg", seed, 0.0) for seed in range(2)]
    found += [record("optimum", 0, 1.6, bound_ps=625_000)]
    records = tables.Records(found)
    methods = ["egrl", "ea", "pg"]
    assert tables.final(records, methods).splitlines()[2:] == [
        "| resnet50 int8 | 1.425 ± 0.247 | 1.000 ± 0.000 | 0.000 ± 0.000 | 1.600 |"
    ]
    # 1.0 / 1.25 - 1 and 1.0 / 1.6 - 1.
    assert tables.differences(records, "ea") == pytest.approx([-0.2, -0.375])
    assert tables.attribution(records, methods).splitlines()[3].endswith("| -28.7% ± 8.8% |")


def test_an_optimum_without_a_proof_says_so() -> None:
    tables = benchmarks.egrl.tables
    records = tables.Records([record("optimum", 0, 1.6, bound_ps=600_000)])
    assert tables.final(records, []).endswith("| 1.600 (not proven) |")


def test_tables_are_written_into_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- one -->\nold\n<!-- end of one -->\nb\n<!-- two -->\n<!-- end of two -->\n")
    benchmarks.lib.tables.write_into(page, {"one": r"\1", "two": "| x |"})
    expected = "a\n<!-- one -->\n\n\\1\n\n<!-- end of one -->\nb\n<!-- two -->\n\n| x |\n\n<!-- end of two -->\n"
    assert page.read_text() == expected
    benchmarks.lib.tables.write_into(page, {"one": r"\1"})
    assert page.read_text() == expected
    with pytest.raises(InputError, match="three"):
        benchmarks.lib.tables.write_into(page, {"one": "new", "three": ""})
    assert page.read_text() == expected


def test_the_page_has_a_place_for_every_table() -> None:
    page = (ROOT / "docs" / "results" / "egrl.md").read_text(encoding="utf-8")
    source = (ROOT / "benchmarks" / "egrl" / "paper.py").read_text(encoding="utf-8")
    places = [line.split()[1] for line in page.splitlines() if line.startswith("<!-- ") and "end of" not in line]
    assert places
    for place in places:
        assert f'"{place}": ' in source
        assert f"<!-- end of {place} -->" in page


def test_measured_greedy_is_the_portfolios() -> None:
    """Without noise, measurements lead Greedy-DP where the cost model's numbers do."""
    checked = 0
    for seed in range(60):
        problem = random_problem(seed, layers=12)
        data = arrays.build(problem)
        begin = heuristics.any_map(data)
        if begin is None or begin.any():
            continue  # it does not begin with all in the slowest tier
        meter = benchmarks.egrl.methods.Meter(Chip(problem))
        benchmarks.egrl.methods.greedy_dp(meter, problem, 100_000)
        expected = heuristics.greedy_dp(data, begin, lambda: False)
        assert (meter.latency_ps, meter.evaluations) == (expected.latency, expected.evaluations), seed
        checked += 1
    assert checked > 20


def test_repaired_greedy_tries_only_what_can_be_executed() -> None:
    moved = 0
    for seed in range(30):
        problem = random_problem(seed, layers=12)
        begin = heuristics.any_map(arrays.build(problem))
        if begin is None or begin.any():
            continue
        chip = Chip(problem)

        def repair(maps: Any, chip: Chip = chip) -> Any:
            nonlocal moved
            found, epsilon = chip.compiled(maps)
            moved += int((epsilon > 0).sum())
            return found

        repaired = benchmarks.egrl.methods.Meter(chip)
        benchmarks.egrl.methods.greedy_dp(repaired, problem, 1_000, repair)
        # A repair counts as no evaluation.
        assert (chip.inferences, chip.evaluations) == (repaired.evaluations,) * 2
        assert min(np.concatenate(repaired.speedups)) > 0
    assert moved > 20


def test_a_run_that_is_cut_off_says_how_many_evaluations_it_made(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    methods, tables = benchmarks.egrl.methods, benchmarks.egrl.tables
    cut = methods.run_of("ea", "resnet50", "int8", 0, 10**6, seconds=1e-9)
    assert cut.file(tmp_path) != methods.run_of("ea", "resnet50", "int8", 0, 10**6).file(tmp_path)
    found, _ = methods.perform(cut)
    assert found.evaluations < 100
    records = [record("paper", seed, 1.6, evaluations=evaluations) for seed, evaluations in enumerate((50, 120))]
    records += [record("egrl", 0, 1.2)]
    row = tables.at_equal(tables.Records(records), "paper", ["paper", "egrl"]).splitlines()[-1]
    assert row == "| resnet50 int8 | 50 | 0.800 ± 0.000 | 0.600 |"


def test_a_meter_keeps_the_map_that_measured_best() -> None:
    run = benchmarks.egrl.methods.run_of("greedy_dp", "resnet50", "int8", 3, 300, 0.05)
    found, _ = benchmarks.egrl.methods.perform(run)
    # Its plan was verified; what is reported is without noise, what it was chosen by is with it.
    assert found.speedup != found.measured
    assert found.points[-1][1] == found.speedup
    assert 0 < found.points[-1][0] <= 300


@pytest.mark.slow
def test_all_of_it_in_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="needs the extra 'learned'")
    pytest.importorskip("matplotlib", reason="needs the extra 'viz'")
    small = ["--evaluations", "60", "--networks", "resnet50", "resnet101", "--seeds", "0", "--folder", str(tmp_path)]
    benchmarks.egrl.paper.main([*small, "--precisions", "int8", "--methods", "egrl", "ea", "greedy_dp", "search"])
    printed = capsys.readouterr().out
    for place in ("figure3", "attribution", "noise", "figure4"):
        assert f"{place}:\n" in printed
    pictures = {path.name for path in tmp_path.glob("*.png")}
    assert pictures == {f"egrl-{name}.png" for name in ("figure3", "attribution", "figure4")}
