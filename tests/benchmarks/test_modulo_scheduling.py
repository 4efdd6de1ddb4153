"""Runs of ``benchmarks/modulo_scheduling/graphs.py``: what is kept and what counts as the same run, and its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import benchmarks.modulo_scheduling.runs
import benchmarks.modulo_scheduling.tables

OF = ("distance", None, "variables", "se")


def test_a_run_is_kept_and_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = benchmarks.modulo_scheduling.runs
    path = tmp_path / "records" / "runs.jsonl"
    counted = runs.Options(method="search", evaluations=20, time_limit=60.0)
    first = runs.Store(path).get(*OF, counted)
    assert (first.ii, first.checked, first.status) == (1, "ok", "feasible")
    with open(path, "ab") as stream:
        stream.write(b'{"key": "cut o')
    assert list(runs.read_records(path)) == [first]
    again = runs.Store(path)
    other = again.get(*OF, msgspec.structs.replace(counted, seed=1))
    assert other.key != first.key

    def refuse(*_: object) -> None:
        raise AssertionError("run twice")

    monkeypatch.setattr(runs, "perform", refuse)
    assert again.get(*OF, counted) == first
    with pytest.raises(AssertionError, match="run twice"):
        again.get("distance", 1, "variables", "se", counted)


@pytest.mark.parametrize("method", ["search", "random", "evolution"])
def test_evaluations_are_limited(method: str) -> None:
    runs = benchmarks.modulo_scheduling.runs
    record = runs.Store(None).get(*OF, runs.Options(method=method, evaluations=100, time_limit=60.0))
    assert record.ii is not None
    assert 100 <= record.evaluations < 300
    assert 0 < record.found_after <= record.evaluations
    assert not record.is_proven


def test_the_exact_search_proves() -> None:
    runs = benchmarks.modulo_scheduling.runs
    record = runs.Store(None).get(*OF, runs.Options(method="cpsat", time_limit=60.0, interval_only=True))
    assert record.is_proven
    assert record.proven_after is not None
    assert (record.ii, record.ii_bound, record.suite) == (1, 1, "kernels")


def test_an_ifft_is_the_graph_of_the_fft() -> None:
    one, other = (benchmarks.modulo_scheduling.runs.problem_of(name, None, "variables", "se") for name in ("fft8", "ifft8"))
    assert one.digest == other.digest
    assert one.name != other.name


def record(graph: str, **changes: Any) -> Any:
    values: dict[str, Any] = {
        "key": graph,
        "suite": "one",
        "graph": graph,
        "max_delay": None,
        "inputs": "variables",
        "machine": "se",
        "instructions": 9,
        "edges": 8,
        "mii": 2,
        "path": 12,
        "options": benchmarks.modulo_scheduling.runs.Options(method="portfolio"),
        "status": "feasible",
        "ii": 3,
        "makespan": 20,
        "ii_bound": 3,
        "makespan_bound": 18,
        "proven_after": 1.5,
        "seconds": 10.0,
        "checked": "ok",
    }
    return benchmarks.modulo_scheduling.runs.Record(**(values | changes))


def test_tables() -> None:
    tables = benchmarks.modulo_scheduling.tables
    nothing: dict[str, Any] = {"ii": None, "makespan": None}
    proven = record("a")
    found = record("b", ii=4, proven_after=None)
    infeasible = record("c", status="infeasible", ii_bound=64, proven_after=0.5, **nothing)
    neither = record("d", suite="two", status="no_plan", proven_after=None, **nothing)
    seeds = [record("a", ii=ii, makespan=makespan) for ii, makespan in ((5, 30), (4, 40), (4, 35))]
    table = tables.kernel_table([(proven, {"random": seeds}), (found, {"random": [neither]})])
    assert "| a | 9 | 2 | 3 | minimal | 1.5 s | 20 | 18 or more | 10 | 4 to 5 (35) |" in table
    assert "| b | 9 | 2 | 4 | 3 or more |  | 20 |  | 10 | none |" in table
    columns = {"unlimited": [proven, found, infeasible, neither], "1": [infeasible, infeasible, proven, found]}
    outcomes = tables.outcome_table(columns).splitlines()
    assert "| initiation interval proven minimal | 1 | 1 |" in outcomes
    assert "| proven infeasible | 1 | 2 |" in outcomes
    assert "| time after which half of all graphs are proven | 1.5 s | 0.5 s |" in outcomes
    assert "| time after which nine of ten graphs are proven | not within the limit | not within the limit |" in outcomes
    assert "| two | 1 | 0, 0, 0 | 0, 0, 0 |" in tables.suite_table(columns)
    assert "| b (one) | unlimited | 9 | 2 | 4 | 3 or more |" in tables.open_table(columns)
    assert tables.open_table({"0": [proven]}) == "None."
