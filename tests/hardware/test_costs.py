"""Problems from programs: roofline, table and measured costs on programs made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowplan.errors import InputError, UsageError
from stowplan.hardware.costs import (
    CycleTable,
    Measurements,
    StepCycles,
    StepMeasurement,
    make_problem,
    measurement_sheet,
    read_measurements,
)
from stowplan.hardware.program import Program, ProgramLoop, ProgramStep, ProgramTensor, ProgramUse
from stowplan.hardware.targets import load_target
from stowplan.models.memory_mapping import problem as problems

TEACHING = load_target("teaching")
"""A byte takes 100 ps from slow memory, 10 ps from fast memory; 1 ps a flop, 10 ps an element; no overhead."""


def step(*uses: tuple[int, bool, int], flops: int = 0, elementwise: int = 0, name: str = "s", weight: int = 1) -> ProgramStep:
    return ProgramStep(name, "fusion", flops, elementwise, weight, tuple(ProgramUse(*use) for use in uses))


def program(*steps: ProgramStep, tensors: int = 4, loops: tuple[ProgramLoop, ...] = ()) -> Program:
    return Program("p", steps, tuple(ProgramTensor(f"t{i}", 1000, True, False) for i in range(tensors)), loops)


def latencies(one: ProgramStep, **options: object) -> dict[tuple[bool, ...], int]:
    """Latency of the only step of a program for every choice of fast uses."""
    made = make_problem(program(one), TEACHING, **options).steps[0]  # type: ignore[arg-type]
    count = len(one.uses)
    masks = [tuple(bool(mask >> bit & 1) for bit in range(count)) for mask in range(1 << count)]
    return {mask: made.latency_ps(mask) for mask in masks}


class TestRoofline:
    def test_traffic_decides(self) -> None:
        found = latencies(step((0, False, 100), (1, True, 50), flops=10))
        assert found == {
            (False, False): 15_000,
            (True, False): 1_000 + 5_000,
            (False, True): 10_000 + 500,
            (True, True): 1_500,
        }

    def test_computation_hides_some_of_the_traffic(self) -> None:
        found = latencies(step((0, False, 100), (1, True, 50), flops=6_000, elementwise=100))
        assert found == {(False, False): 15_000, (True, False): 7_000, (False, True): 10_500, (True, True): 7_000}

    def test_steps_without_a_product_read_no_faster_than_the_vector_unit(self) -> None:
        # 100 bytes at 100 GB/s are what fast memory gives: no difference. A slower unit limits reads from both memories.
        slower = load_target("tpu-v4")
        speed = slower.roofline
        one = step((0, False, 1_950_000))
        fast = make_problem(program(one), slower).steps[0].latency_ps([True])
        assert fast == speed.overhead + 10_000_000
        assert make_problem(program(step((0, False, 1_950_000), flops=1)), slower).steps[0].latency_ps([True]) < fast

    def test_a_step_that_does_nothing_takes_no_time(self) -> None:
        tpu = load_target("tpu-v4")
        assert make_problem(program(step((0, True, 0))), tpu).all_slow_ps == 0
        assert make_problem(program(step()), tpu).all_slow_ps == 0
        assert make_problem(program(step(elementwise=1)), tpu).all_slow_ps == tpu.roofline.overhead + 1

    def test_a_scalar_saves_next_to_nothing(self) -> None:
        made = make_problem(program(step((0, False, 4), (1, True, 4), elementwise=1)), load_target("tpu-v4"))
        assert made.all_slow_ps - made.all_fast_ps < 100

    @given(
        st.sampled_from(["teaching", "tpu-v4", "tpu-v4i"]),
        st.lists(st.integers(0, 10**9), min_size=1, max_size=5),
        st.integers(0, 10**15),
        st.integers(0, 10**12),
    )
    def test_more_fast_uses_never_hurt_and_the_floor_is_reached(
        self, target: str, moved: list[int], flops: int, elementwise: int
    ) -> None:
        uses = [(number, number % 2 == 1, size) for number, size in enumerate(moved)]
        made = make_problem(program(step(*uses, flops=flops, elementwise=elementwise), tensors=5), load_target(target)).steps[0]
        for mask in range(1 << len(moved)):
            fast = [bool(mask >> bit & 1) for bit in range(len(moved))]
            for bit in range(len(moved)):
                more = [*fast]
                more[bit] = True
                assert made.latency_ps(more) <= made.latency_ps(fast)
        assert made.latency_ps([True] * len(moved)) == made.floor_ps


class TestProblem:
    def test_everything_of_program_and_target_arrives(self, tmp_path: Path) -> None:
        tensors = (
            ProgramTensor("in", 1000, True, False),
            ProgramTensor("state", 70, False, True, ("a", "b{0}")),
            ProgramTensor("empty", 0, True, False),
        )
        steps = (
            step((0, False, 10), (1, True, 70), name="first"),
            step((1, False, 70), (1, True, 7), name="second", weight=12),
        )
        made = make_problem(Program("mlp", steps, tensors, (ProgramLoop(1, 2, 12, "while"),)), TEACHING)
        assert (made.name, made.target, made.cost_model) == ("mlp", "teaching", "roofline")
        assert (made.capacity, made.alignment, made.channels, made.max_preloads) == (1 << 20, 64, 1, 0)
        assert (made.stalls, made.alias_rule) == ("allowed", "in_place")
        assert made.loops == (problems.Loop(1, 2, 12),)
        assert [tensor.size for tensor in made.tensors] == [1000, 70, 1]
        assert made.tensors[0].copy_in_ps == made.tensors[0].copy_out_ps == 100_000
        assert made.tensors[1] == problems.Tensor("state", 70, 7_000, 7_000, False, True, ("a", "b{0}"))
        assert made.steps[1].weight == 12
        assert made.steps[1].uses == (problems.Use(1, False, 70), problems.Use(1, True, 7))
        made.save(tmp_path / "p.json")
        assert problems.Problem.load(tmp_path / "p.json") == made

    def test_options(self) -> None:
        made = make_problem(
            program(step()), load_target("tpu-v4"), capacity=4096, stalls="forbidden", alias_rule="uniform", name="q"
        )
        assert (made.name, made.capacity, made.stalls, made.alias_rule) == ("q", 4096, "forbidden", "uniform")
        assert (made.max_preloads, made.alignment) == (1, 4096)
        with pytest.raises(InputError, match="capacity"):
            make_problem(program(step()), TEACHING, capacity=0)

    def test_the_same_twice(self) -> None:
        one = program(step((0, False, 10), (1, True, 70), flops=3))
        assert make_problem(one, TEACHING).digest == make_problem(one, TEACHING).digest

    def test_a_model_needs_its_data(self) -> None:
        with pytest.raises(UsageError, match="needs cycles"):
            make_problem(program(step()), TEACHING, cost_model="table")
        with pytest.raises(UsageError, match="needs measurements"):
            make_problem(program(step()), TEACHING, cost_model="measured")
        with pytest.raises(UsageError, match="found cost model 'best', expected one of roofline, table, measured"):
            make_problem(program(step()), TEACHING, cost_model="best")  # type: ignore[arg-type]

    def test_data_choose_the_model_unless_one_is_named(self) -> None:
        cycles = CycleTable({"s": StepCycles(7)})
        assert make_problem(program(step()), TEACHING, cycles=cycles).cost_model == "table"
        assert make_problem(program(step()), TEACHING, cycles=cycles, cost_model="roofline").cost_model == "roofline"
        assert make_problem(program(step()), TEACHING, measurements=Measurements(())).cost_model == "measured"


def table(slow: int, planned: int | None, *fast: tuple[int, bool]) -> CycleTable:
    return CycleTable({"s": StepCycles(slow, planned, frozenset(fast))})


class TestTable:
    """A cycle of the teaching target is 1000 ps."""

    def test_the_saving_is_divided_as_the_roofline_divides_it(self) -> None:
        one = step((0, False, 100), (1, False, 300), (2, True, 100), flops=1)
        found = latencies(one, cycles=table(60, 40, (0, False), (1, False)))
        assert found[False, False, False] == 60_000
        assert found[True, True, False] == 40_000
        assert found[True, False, False] == 55_000
        assert found[False, True, False] == 45_000
        # The other use saves at the same rate: 20 of the modelled 36 ns of the two, so 5 of 9.
        assert found[True, True, True] == 35_000

    def test_other_uses_save_no_more_than_the_roofline_says(self) -> None:
        # Of 10 ns by the roofline, the compiler's plan saves 90 % by a use of half the traffic: the other half has no more.
        one = step((0, False, 50), (1, False, 50), flops=1)
        found = latencies(one, cycles=table(10, 1, (0, False)))
        assert found[True, False] == 1_000
        assert found[True, True] == 1_000

    def test_a_loss_is_divided_by_bytes_and_promises_nothing_for_other_uses(self) -> None:
        one = step((0, False, 100), (1, True, 300), (2, True, 100), flops=1)
        found = latencies(one, cycles=table(60, 64, (0, False), (1, True)))
        assert found[False, False, False] == 60_000
        assert found[True, False, False] == 61_000
        assert found[True, True, False] == found[True, True, True] == 64_000

    def test_a_saving_where_the_roofline_sees_none_is_divided_by_bytes(self) -> None:
        tpu = load_target("tpu-v4")
        assert tpu.roofline.fast_write_bandwidth == tpu.roofline.slow_write_bandwidth
        one = step((0, True, 100), (1, True, 300), flops=1)
        made = make_problem(program(one), tpu, cycles=table(210, 126, (0, True), (1, True))).steps[0]
        assert made.latency_ps([False, False]) == 200_000
        assert made.latency_ps([True, False]) == 180_000
        assert made.latency_ps([True, True]) == 120_000

    def test_one_estimate_scales_the_roofline(self) -> None:
        one = step((0, False, 100), (1, True, 50), flops=6_000)
        plain = latencies(one)
        for cycles in (table(30, None), table(30, 20)):  # without a fast use the second estimate says nothing
            scaled = latencies(one, cycles=cycles)
            assert scaled == {mask: 2 * latency for mask, latency in plain.items()}

    def test_steps_without_an_estimate_have_roofline_costs(self) -> None:
        one = step((0, False, 100), flops=1)
        assert latencies(one, cycles=CycleTable({"other": StepCycles(1)})) == latencies(one)

    @given(
        st.sampled_from(["teaching", "tpu-v4"]),
        st.lists(st.tuples(st.integers(0, 10**8), st.booleans()), min_size=1, max_size=5),
        st.integers(0, 10**12),
        st.integers(0, 10**9),
        st.integers(0, 10**9),
    )
    def test_both_estimates_are_met_to_the_picosecond(
        self, target_name: str, moved: list[tuple[int, bool]], flops: int, slow: int, planned: int
    ) -> None:
        target = load_target(target_name)
        uses = [(number, number % 2 == 1, size) for number, (size, _) in enumerate(moved)]
        fast = [number % 2 == 1 for number in range(len(moved))]
        chosen = [is_fast for _, is_fast in moved]
        estimate = table(slow, planned, *((n, fast[n]) for n, is_fast in enumerate(chosen) if is_fast))
        made = make_problem(program(step(*uses, flops=flops), tensors=5), target, cycles=estimate).steps[0]
        assert made.latency_ps([False] * len(moved)) == target.cycles_ps(slow)
        if any(chosen):
            assert made.latency_ps(chosen) == target.cycles_ps(planned)
        for mask in range(1 << len(moved)):
            latency = made.latency_ps([bool(mask >> bit & 1) for bit in range(len(moved))])
            assert latency >= made.floor_ps >= 0


CSV = """step,fast,latency_ps
s,,900
s,0,800
s,2,700

s,0 2,650
"""


class TestMeasured:
    def test_csv(self, tmp_path: Path) -> None:
        path = tmp_path / "m.csv"
        path.write_text(CSV)
        one = step((0, False, 100), (1, True, 50), (2, False, 10), flops=9)
        found = latencies(one, measurements=read_measurements(path))
        assert found[False, False, False] == found[False, True, False] == 900
        assert found[True, False, False] == found[True, True, False] == 800
        assert found[False, True, True] == 700
        assert found[True, True, True] == 650

    def test_json_and_cycles(self, tmp_path: Path) -> None:
        path = tmp_path / "m.json"
        path.write_text(
            '{"format": "stowplan.measurements", "version": 1, "steps": [{"step": "s", "uses": [1], "cycles": [5, 3]}]}'
        )
        one = step((0, False, 100), (1, True, 50), flops=9)
        found = latencies(one, measurements=read_measurements(path))
        assert found[False, False] == found[True, False] == 5000
        assert found[False, True] == 3000
        path.write_text("step,fast,cycles\ns,,5\ns,1,3\n")
        assert latencies(one, measurements=read_measurements(path)) == found

    def test_other_steps_have_roofline_costs(self) -> None:
        measured = Measurements((StepMeasurement("s", (), (3,)),))
        made = make_problem(program(step(), step((0, False, 100), name="t")), TEACHING, measurements=measured)
        assert [one.latency_ps([False] * len(one.uses)) for one in made.steps] == [3, 10_000]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "line 1: found columns '', expected step,fast,latency_ps or step,fast,cycles"),
            ("step,fast,seconds\n", "line 1: found columns"),
            ("step,fast,cycles\ns,0\n", "line 2: found 's,0', expected a step"),
            ("step,fast,cycles\ns,0,1.5\n", "line 2: found 's,0,1.5'"),
            ("step,fast,cycles\ns,a,1\n", "line 2: found 's,a,1'"),
            ("step,fast,cycles\ns,,1\ns,,2\n", "line 3: found fast uses '' of s twice"),
            ("step,fast,cycles\ns,,1\ns,0 1,2\n", "step s: found no value for fast uses '0', expected one for each subset"),
            ("step,fast,cycles\ns,,1\ns,-1,2\n", "expected at most 8 distinct positions"),
            ("step,fast,cycles\ns,,-1\n", "found -1, expected at least 0"),
            ("step,fast,cycles\ns,0 1 2 3 4 5 6 7 8,1\n", "found 9 different uses, expected at most 8"),
            ("step,fast,cycles\ns,," + "1" * 200_000 + "\n", "not a CSV file: field larger than field limit"),
            ('{"format": "x"}', "format: found format 'x', expected 'stowplan.measurements'"),
            (
                '{"format": "stowplan.measurements", "version": 1, "steps": [{"step": "s", "uses": [1]}]}',
                "steps[0] (s): found both or neither of latency_ps and cycles",
            ),
            (
                '{"format": "stowplan.measurements", "version": 1, "steps": [{"step": "s", "uses": [1], "cycles": [1]}]}',
                "steps[0] (s): found 1 values, expected 2 for 1 uses",
            ),
            (
                '{"format": "stowplan.measurements", "version": 1, "steps": [{"step": "s", "uses": "a", "cycles": [1]}]}',
                "steps[0].uses: Expected `array`, got `str`",
            ),
        ],
    )
    def test_bad_files(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "m"
        path.write_text(text)
        with pytest.raises(InputError) as caught:
            read_measurements(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert message in str(caught.value)

    def test_measurements_must_fit_the_program(self) -> None:
        with pytest.raises(InputError, match="found step 'x', expected a step of p"):
            make_problem(program(step()), TEACHING, measurements=Measurements((StepMeasurement("x", (), (3,)),)))
        late = Measurements((StepMeasurement("s", (1,), (3, 2)),))
        with pytest.raises(InputError, match="step s: found use 1, expected one below 1"):
            make_problem(program(step((0, False, 1))), TEACHING, measurements=late)

    def test_the_sheet_lists_the_largest_uses_and_reads_back(self, tmp_path: Path) -> None:
        one = step((0, False, 10), (1, True, 50), (2, False, 30))
        sheet = measurement_sheet(program(one), limit=2)
        assert sheet.splitlines() == ["step,fast,latency_ps", "s,,", "s,1,", "s,2,", "s,1 2,"]
        path = tmp_path / "m.csv"
        path.write_text(sheet.replace(",\n", ",7\n"))
        assert set(latencies(one, measurements=read_measurements(path)).values()) == {7}
