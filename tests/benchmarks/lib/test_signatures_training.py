"""What is learned of latency tables holds for programs that were not seen."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest

from stowplan.errors import InputError
from stowplan.hardware.costs.signatures import (
    Assignment,
    LatencyTable,
    StepPlacement,
    StepSignature,
)
from stowplan.hardware.costs.signatures.predictor import Known, StepFacts, as_bits
from tests.hardware.test_costs_signatures import step, table


def _made_up(name: str, rng: random.Random, count: int = 40) -> tuple[str, dict[str, StepSignature], LatencyTable]:
    """A program whose cycles follow a rule: reads from fast memory are three times as quick, writes there cost more."""
    steps, found = {}, LatencyTable()
    for number in range(count):
        sizes = [rng.randint(1, 64) << 16 for _ in range(rng.randint(2, 5))]
        each = step(f"{name}{number}", sizes)
        steps[each.signature] = each
        for pattern in {0, *(rng.randrange(1 << len(sizes)) for _ in range(6))}:
            cycles = 700.0
            for bit, leaf in enumerate(each.leaves):
                is_fast = pattern >> bit & 1
                cycles += leaf.moved / 300 * ((1.2 if leaf.is_output else 0.33) if is_fast else 1.0)
            found.add(Assignment({each.signature: StepPlacement(pattern, round(cycles))}), {each.signature: each})
    return name, steps, found


class TestTraining:
    @pytest.mark.parametrize(("trees", "count", "error"), [(12, 10, 0.2), pytest.param(40, 40, 0.04, marks=pytest.mark.slow)])
    def test_what_is_learned_holds_for_other_programs(
        self, monkeypatch: pytest.MonkeyPatch, trees: int, count: int, error: float
    ) -> None:
        pytest.importorskip("sklearn")
        from benchmarks.lib.costs import signatures_training as training
        from benchmarks.lib.costs.signatures_training import collect, fit, held_out

        monkeypatch.setattr(training, "MIDDLE_TREES", trees)
        monkeypatch.setattr(training, "SPREAD_TREES", 10)
        rng = random.Random(1)
        programs = [_made_up(name, rng, count) for name in "abc"]
        samples = collect(programs)
        assert samples.modules == ("a", "b", "c")
        parts = held_out(samples, folds=3)
        assert [part.modules for part in parts] == [("a",), ("b",), ("c",)]
        errors, held, plain = [], [], []
        for part, (_, steps, full) in zip(parts, programs, strict=True):
            for each in steps.values():
                rows = full.rows(each.signature)
                asked = [pattern for pattern in rows if pattern]
                known = Known.of({0: rows[0]}, len(each.leaves))
                found = part.predictor.predict(StepFacts(each), known, as_bits(asked, len(each.leaves)))
                true = np.array([rows[pattern] for pattern in asked])
                errors += (np.abs(found.cycles / true - 1)).tolist()
                plain += (np.abs(rows[0] / true - 1)).tolist()
                held += ((found.low <= true) & (true <= found.high)).tolist()
        assert np.median(errors) < error < np.median(plain)
        assert 0.75 < np.mean(held) <= 1.0
        monkeypatch.setattr(training, "MIDDLE_TREES", 5)
        assert fit(samples, folds=2).middle.value.tolist() == fit(samples, folds=3).middle.value.tolist()

    def test_a_program_of_several_chips_is_one_and_counts_less_on_others(self) -> None:
        from benchmarks.lib.costs.signatures_training import collect, with_other_chips

        own, other = (
            collect([_made_up(name, random.Random(seed)) for name in names]) for seed, names in ((1, "ab"), (2, "cb"))
        )
        found = with_other_chips(own, [other])
        assert found.modules == ("a", "b", "c")
        count = len(own.target)
        assert found.module[:count].tolist() == own.module.tolist()
        assert {*found.module[count:]} == {1, 2}
        assert found.weight[:count].tolist() == own.weight.tolist()
        assert found.weight[count:] == pytest.approx(0.3 * other.weight)
        assert found.matrix[count:].tolist() == other.matrix.tolist()

    def test_trees_are_the_librarys(self) -> None:
        ensemble = pytest.importorskip("sklearn.ensemble")
        from benchmarks.lib.costs.signatures_training import _trees

        rng = np.random.default_rng(0)
        rows = rng.normal(size=(500, 3)).round(1)
        model = ensemble.HistGradientBoostingRegressor(max_iter=20).fit(rows, rows[:, 0] * rows[:, 1] + rows[:, 2])
        assert _trees(model).predict(rows) == pytest.approx(model.predict(rows), rel=1e-5, abs=1e-5)

    def test_learning_without_the_package_says_what_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from benchmarks.lib.costs.signatures_training import collect, fit
        from stowplan.errors import MissingDependencyError

        samples = collect([_made_up(name, random.Random(2)) for name in "ab"])
        monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
        with pytest.raises(MissingDependencyError, match=r"pip install '\.\[xla\]'"):
            fit(samples)

    def test_one_pattern_teaches_nothing(self) -> None:
        from benchmarks.lib.costs.signatures_training import collect

        one = step("aa", [4, 4])
        with pytest.raises(InputError, match="found no instruction with two patterns"):
            collect([("a", {"s": one}, table(one, {0: 1}))])
