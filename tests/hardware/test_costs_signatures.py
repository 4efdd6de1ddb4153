"""Latency tables, predictions and the cost model made of them, on programs made by hand."""

from __future__ import annotations

import io
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowplan.errors import InputError, UsageError
from stowplan.hardware.costs import make_problem
from stowplan.hardware.costs.signatures import (
    NO_USE,
    Assignment,
    LatencyTable,
    Leaf,
    Predictor,
    SignatureCosts,
    StepPlacement,
    StepSignature,
)
from stowplan.hardware.costs.signatures.predictor import NAMES, SHIPPED, Known, StepFacts, Trees, as_bits, features, shipped
from stowplan.hardware.program import Program, ProgramStep, ProgramTensor, ProgramUse
from stowplan.hardware.targets import load_target, target_names

TPU = load_target("tpu-v4")


def leaf(use: int, size: int = 1 << 20, *, is_output: bool = False) -> Leaf:
    return Leaf(use, is_output, size, size, 32, (128, size // 512 or 1))


def step(signature: str, sizes: list[int], *, weight: int = 1) -> StepSignature:
    """Reads all but the last of its arrays, and writes that."""
    leaves = tuple(leaf(use, size, is_output=use == len(sizes) - 1) for use, size in enumerate(sizes))
    return StepSignature(signature, "fusion", "kLoop", 0, 1 << 18, (("add", 1),), leaves, weight)


def program(**steps: StepSignature) -> Program:
    made = tuple(
        ProgramStep(
            name,
            each.opcode,
            each.flops,
            each.elementwise,
            each.weight,
            tuple(ProgramUse(leaf.use, leaf.is_output, leaf.moved) for leaf in each.leaves),
        )
        for name, each in steps.items()
    )
    count = max(len(each.leaves) for each in steps.values())
    return Program("p", made, tuple(ProgramTensor(f"t{number}", 1 << 20, True, False) for number in range(count)))


def table(step: StepSignature, rows: dict[int, int]) -> LatencyTable:
    found = LatencyTable()
    for pattern, cycles in rows.items():
        found.add(Assignment({"s": StepPlacement(pattern, cycles)}), {"s": step})
    return found


def constant(value: float, *, spread: float = -3.0, width: float = 2.0) -> Predictor:
    """Predicts one ratio for everything."""
    one = np.zeros(1, np.int32)
    fields = {"roots": one, "feature": np.full(1, -1, np.int16), "threshold": np.zeros(1), "left": one, "right": one}
    middle, errors = (Trees(0.0, **fields, value=np.full(1, each, np.float32)) for each in (value, spread))
    return Predictor(middle, errors, width)


class TestTable:
    def test_it_grows_with_every_compile(self) -> None:
        one, two = step("aa", [1 << 20] * 2), step("bb", [1 << 20] * 3)
        steps = {"x": one, "y": one, "z": two}
        found = LatencyTable()
        placed = {"x": StepPlacement(0, 100), "y": StepPlacement(2, 90), "z": StepPlacement(5, 70), "w": StepPlacement(1, 1)}
        assert found.add(Assignment(placed), steps) == 3
        assert found.add(Assignment(placed | {"x": StepPlacement(3, 60), "y": StepPlacement(1, None)}), steps) == 1
        assert found.rows("aa") == {0: 100, 2: 90, 3: 60}
        assert found.rows("bb") == {5: 70}
        assert (len(found), found.compiles, found.conflicts) == (4, 2, 0)
        assert "cc" not in found
        assert found.only(["bb", "cc"]).rows("aa") == {}
        found.add(Assignment({"x": StepPlacement(0, 101)}), steps)
        assert (found.conflicts, found.rows("aa")[0]) == (1, 101)

    @given(st.dictionaries(st.sampled_from(["aa", "bb"]), st.dictionaries(st.integers(0, 2**70 - 1), st.integers(0, 10**12))))
    def test_files_keep_everything(self, rows: dict[str, dict[int, int]]) -> None:
        found = LatencyTable()
        for signature, entries in rows.items():
            found.merge(table(step(signature, [4] * 70), entries))
        again = LatencyTable.decode(_saved(found))
        assert {name: again.rows(name) for name in ("aa", "bb")} == {name: rows.get(name, {}) for name in ("aa", "bb")}
        assert again.compiles == found.compiles
        assert _saved(again) == _saved(found)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "not a stowplan.latency_table file"),
            ('{"format": "stowplan.latency_table", "version": 2, "signatures": {}}', "version: found version 2, expected 1"),
            ('{"format": "stowplan.latency_table", "version": 1}', "missing required field `signatures`"),
            (
                '{"format": "stowplan.latency_table", "version": 1, "signatures": {"a": {"01": 1, "2": 3}}}',
                "signatures.a: found patterns of different lengths",
            ),
            (
                '{"format": "stowplan.latency_table", "version": 1, "signatures": {"a": {"0x": 1}}}',
                "signatures.a: found pattern '0x', expected zeros and ones",
            ),
            (
                '{"format": "stowplan.latency_table", "version": 1, "signatures": {"a": {"0": -1}}}',
                "signatures.a: found -1 cycles",
            ),
        ],
    )
    def test_bad_files(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "t.json"
        path.write_text(text)
        with pytest.raises(InputError) as caught:
            LatencyTable.load(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert message in str(caught.value)

    def test_tables_of_other_programs_do_not_mix(self) -> None:
        found = table(step("aa", [4] * 2), {0: 1})
        with pytest.raises(InputError, match="found 3 leaves of signature aa, expected 2"):
            found.merge(table(step("aa", [4] * 3), {0: 1}))


def _saved(found: LatencyTable) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        found.save(path)
        return path.read_bytes()


class TestTrees:
    def test_a_row_goes_left_at_the_threshold(self) -> None:
        trees = Trees(
            1.0,
            np.array([0, 3], np.int32),
            np.array([1, -1, -1, -1], np.int16),
            np.array([0.5, 0, 0, 0]),
            np.array([1, 0, 0, 0], np.int32),
            np.array([2, 0, 0, 0], np.int32),
            np.array([0, 10, 20, 100], np.float32),
        )
        assert trees.predict(np.array([[9, 0.5], [9, 0.6]])).tolist() == [111.0, 121.0]
        again = Trees.of_arrays(trees.arrays("x"), "x", 2)
        assert again.predict(np.array([[9, 0.4]])).tolist() == [111.0]
        for name, bad in (("left", [0, 0, 0, 0]), ("right", [4, 0, 0, 0]), ("roots", [4]), ("feature", [2, -1, -1, -1])):
            with pytest.raises(InputError, match="found arrays that do not fit each other"):
                Trees.of_arrays(trees.arrays("x") | {f"x.{name}": np.array(bad)}, "x", 2)
        with pytest.raises(InputError, match=r"x\.value: found no such array"):
            Trees.of_arrays({name: each for name, each in trees.arrays("x").items() if name != "x.value"}, "x", 2)


class TestFeatures:
    def test_the_nearest_pattern_is_by_bytes(self) -> None:
        one = step("aa", [4 << 20, 1 << 20, 2 << 20])
        known = Known.of({0b000: 1000, 0b011: 700}, 3)
        _, anchor = features(StepFacts(one), known, as_bits([0b001, 0b010, 0b111], 3))
        assert np.exp(anchor) == pytest.approx([700, 1000, 700])

    @given(st.integers(0, 20), st.integers(0, 10**6))
    def test_they_are_numbers(self, leaves: int, seed: int) -> None:
        rng = random.Random(seed)
        sizes = [rng.choice([0, 4, 1 << 20]) for _ in range(leaves)]
        one = step("aa", sizes)
        rows = {rng.randrange(1 << leaves): rng.choice([0, 1, 10**9]) for _ in range(3)}
        matrix, anchor = features(StepFacts(one), Known.of(rows, leaves), as_bits([rng.randrange(1 << leaves)] * 2, leaves))
        assert matrix.shape == (2, len(NAMES))
        assert np.isfinite(matrix).all()
        assert np.isfinite(anchor).all()


class TestPredictor:
    def test_files(self, tmp_path: Path) -> None:
        path = tmp_path / "p.npz"
        constant(-0.25).save(path)
        one = step("aa", [1 << 20] * 2)
        asked = StepFacts(one), Known.of({0: 1000}, 2), as_bits([1, 2], 2)
        for found in (constant(-0.25).predict(*asked), Predictor.load(path).predict(*asked)):
            assert found.cycles == pytest.approx([1000 * np.exp(-0.25)] * 2)
            assert found.high / found.low == pytest.approx([np.exp(4 * np.exp(-3.0))] * 2)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"format": np.array("x")}, "format: found format 'x', expected 'stowplan.latency_predictor'"),
            ({"version": np.array(9)}, "version: found version 9, expected 1"),
            ({"names": np.array(["a"])}, f"names: found 1 features, expected the {len(NAMES)} of this version"),
            ({"width": np.array(-1.0)}, "width: found -1.0, expected a number, at least 0"),
            ({"middle.left": np.zeros(9)}, "middle: found arrays that do not fit each other"),
        ],
    )
    def test_bad_files(self, tmp_path: Path, change: dict[str, np.ndarray], message: str) -> None:
        path = tmp_path / "p.npz"
        constant(0.0).save(path)
        with np.load(path) as stored:
            arrays = dict(stored) | change
        out = io.BytesIO()
        np.savez(out, **arrays)
        path.write_bytes(out.getvalue())
        with pytest.raises(InputError) as caught:
            Predictor.load(path)
        assert str(caught.value) == f"{path}: {message}" or message in str(caught.value)
        path.write_bytes(b"PK no zip")
        with pytest.raises(InputError, match=r"expected a stowplan\.latency_predictor file"):
            Predictor.load(path)

    def test_damaged_files_are_refused_in_one_way(self, tmp_path: Path) -> None:
        path, rng, whole = tmp_path / "p.npz", random.Random(0), SHIPPED["tpu-v4"].read_bytes()
        refused = 0
        for _ in range(60):
            data = bytearray(whole)
            for _ in range(rng.choice([1, 30])):
                data[rng.randrange(rng.choice([3000, len(data)]))] = rng.randrange(256)
            path.write_bytes(data[: rng.choice([len(data), rng.randrange(len(data))])])
            try:
                Predictor.load(path)
            except InputError as error:
                refused += str(error).startswith(f"{path}: ")
        assert refused > 40

    def test_each_shipped_one_is_small_and_of_its_chip(self) -> None:
        assert all(path.stat().st_size < 400_000 for path in SHIPPED.values())
        assert len({shipped(name).middle.start for name in SHIPPED}) == len(SHIPPED)
        chips = {name: load_target(name).predictor for name in target_names()}
        assert chips["tpu-v6e"] == "tpu-v6e"
        assert chips["tpu-7x"] == "tpu-7x"
        assert chips["tpu-v5p"] == chips["tpu-v5e"] == "tpu-v5e"
        assert chips["tpu-v4i"] == chips["teaching"] == "tpu-v4"

    def test_a_chip_that_names_none_has_one_of_its_kind_of_memory(self) -> None:
        target = load_target("tpu-v6e")
        assert target.xla is not None
        unnamed = msgspec.structs.replace(target, xla=msgspec.structs.replace(target.xla, predictor=None))
        assert unnamed.predictor == "tpu-v5e"

    def test_the_shipped_one_needs_no_learning_package(self) -> None:
        code = (
            "import sys; sys.modules['sklearn'] = None\n"
            "from stowplan.hardware.costs.signatures.predictor import shipped\n"
            "print(shipped().width)"
        )
        assert float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout) > 0


class TestCosts:
    def test_known_patterns_exactly_and_others_with_an_interval(self) -> None:
        one = step("aa", [1 << 20] * 3, weight=5)
        costs = SignatureCosts({"s": one}, table(one, {0: 1000, 3: 700}), constant(-0.1))
        found, is_known = costs.predict("s", [0, 1, 3])
        assert is_known.tolist() == [True, False, True]
        assert found.cycles == pytest.approx([1000, 1000 * np.exp(-0.1), 700])
        assert (found.low < found.high).tolist() == [False, True, False]
        totals = costs.assignment({"s": 3, "unknown": 0})
        assert (totals.names, totals.total, totals.deviation) == (("s",), 3500.0, 0.0)
        assert totals.is_known.all()
        guess = costs.of_fast_uses(program(s=one).steps, [True, False, False])
        assert guess.total == pytest.approx(5 * 1000 * np.exp(-0.1))
        assert guess.deviation == pytest.approx(float(guess.unsure[0]))
        assert costs.assignment({"s": 0}).total == 5000.0

    def test_a_growing_table_counts_at_once(self) -> None:
        one = step("aa", [1 << 20] * 2)
        growing = table(one, {0: 1000})
        costs = SignatureCosts({"s": one}, growing, constant(0.5))
        before = make_problem(program(s=one), TPU, signatures=costs)
        growing.add(Assignment({"s": StepPlacement(1, 400)}), {"s": one})
        after = make_problem(program(s=one), TPU, signatures=costs)
        assert before.steps[0].latency_ps([True, False]) == TPU.cycles_ps(round(1000 * np.exp(0.5)))
        assert after.steps[0].latency_ps([True, False]) == TPU.cycles_ps(400)

    def test_steps_without_entries_have_roofline_costs(self) -> None:
        one, two = step("aa", [1 << 20] * 2), step("bb", [1 << 20] * 2)
        costs = SignatureCosts({"s": one, "t": two}, table(one, {0: 1000}), constant(0.0))
        made = make_problem(program(s=one, t=two), TPU, signatures=costs)
        assert made.cost_model == "signatures"
        assert made.steps[1].pieces == make_problem(program(s=one, t=two), TPU).steps[1].pieces

    def test_fast_memory_may_hurt(self) -> None:
        one = step("aa", [1 << 20] * 2)
        costs = SignatureCosts({"s": one}, table(one, {0: 1000, 1: 800, 2: 1300, 3: 1100}), constant(0.0))
        made = make_problem(program(s=one), TPU, signatures=costs)
        assert made.all_fast_ps > made.all_slow_ps > made.floor_ps == TPU.cycles_ps(800)

    def test_uses_without_a_difference_leave_the_table(self) -> None:
        one = step("aa", [1 << 20] * 3)
        rows = {pattern: 1000 - 100 * (pattern & 1) for pattern in range(8)}
        costs = SignatureCosts({"s": one}, table(one, rows), constant(0.0))
        made = make_problem(program(s=one), TPU, signatures=costs).steps[0]
        assert made.table is not None
        assert made.table.uses == (0,)

    def test_leaves_that_are_no_uses_stay_slow(self) -> None:
        bare = StepSignature("aa", "fusion", "", 0, 9, (), (leaf(0), leaf(NO_USE), leaf(1, is_output=True)))
        assert bare.pattern([True, True]) == 0b101
        assert bare.used_leaves() == {0: 0b001, 1: 0b100}

    @pytest.mark.parametrize("seed", range(20))
    def test_of_many_uses_those_are_told_apart_that_measured_cycles_depend_on(self, seed: int) -> None:
        rng = random.Random(seed)
        count = rng.randint(9, 20)
        telling = rng.sample(range(count), 6)
        # The uses that matter are small, so that neither bytes nor the prediction point at them.
        one = step("aa", [4096 if use in telling else 1 << 22 for use in range(count)])
        rows = {}
        for _ in range(30):
            pattern = rng.randrange(1 << count)
            rows[pattern] = 1000 + sum(137 * (bit + 1) for bit, use in enumerate(telling) if pattern >> use & 1)
        costs = SignatureCosts({"s": one}, table(one, rows), shipped())
        made = make_problem(program(s=one), TPU, signatures=costs).steps[0]
        for pattern, cycles in rows.items():
            fast = [bool(pattern >> use & 1) for use in range(count)]
            assert made.latency_ps(fast) == TPU.cycles_ps(cycles)

    def test_signatures_of_another_program_are_refused(self) -> None:
        one, other = step("aa", [1 << 20] * 2), step("aa", [1 << 20] * 3)
        costs = SignatureCosts({"s": other}, table(other, {0: 1000}), constant(0.0))
        with pytest.raises(InputError, match="step s: found a signature of another step"):
            make_problem(program(s=one), TPU, signatures=costs)
        with pytest.raises(UsageError, match="the cost model 'signatures' needs a latency table"):
            make_problem(program(s=one), TPU, cost_model="signatures")
