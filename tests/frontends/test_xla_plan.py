"""XLA's own plan, imported: small modules by hand, to the last number; real ones by what is known of them."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stowplan.errors import InputError, UsageError
from stowplan.frontends.hlo import Donation, read_program
from stowplan.frontends.hlo.placed import read_cycle_table
from stowplan.frontends.xla_plan import ImportedPlan, import_xla_plan
from stowplan.frontends.xla_plan.stays import find_offsets, read_offsets
from stowplan.hardware.costs import make_problem
from stowplan.hardware.program import Program
from stowplan.hardware.targets import load_target
from stowplan.models.memory_mapping.copy_engine import with_whole_copies
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Evictions, Problem
from stowplan.models.memory_mapping.verify import verify
from tests.paths import DATA

DATA = DATA / "xla_plan"
KIB = 1024


def case(name: str, **options: object) -> tuple[Problem, Program, Path]:
    program = read_program(DATA / f"{name}.hlo.txt")
    problem = make_problem(program, load_target("tpu-v4"), **options)  # type: ignore[arg-type]
    return problem, program, DATA / f"{name}.plan.hlo.txt"


def fast_uses(program: Program, plan: Plan) -> dict[str, list[str]]:
    """Tensors each step reads from (``<``) and writes to (``>``) fast memory."""
    found = {}
    number = 0
    for step in program.steps:
        names = []
        for use in step.uses:
            if number in plan.fast_uses:
                names.append(f"{'>' if use.is_output else '<'}{program.tensors[use.tensor].name}")
            number += 1
        if names:
            found[step.name] = names
    return found


class TestChain:
    """Straight code: a preload, a fused tuple, a copy out and in again, a copy in two slices that waits for its place."""

    @pytest.fixture
    def imported(self) -> ImportedPlan:
        return import_xla_plan(*case("chain"))

    @pytest.fixture
    def tensor(self) -> Callable[[str], int]:
        return case("chain")[1].value_tensor.__getitem__

    def test_residencies(self, imported: ImportedPlan, tensor: Callable[[str], int]) -> None:
        assert set(imported.plan.residencies) == {
            Residency(tensor("w0"), 0, 1, 0, preloaded=True),
            Residency(tensor("a"), 0, 3, 32 * KIB),  # until its copy out is complete
            Residency(tensor("b"), 1, 4, 64 * KIB),
            Residency(tensor("c{0}"), 2, 5, 128 * KIB),
            Residency(tensor("w1"), 4, 5, 80 * KIB),
            Residency(tensor("a"), 4, 6, 32 * KIB),
            Residency(tensor("e"), 4, 6, 0),
        }

    def test_copies_are_queued_as_they_start(self, imported: ImportedPlan, tensor: Callable[[str], int]) -> None:
        # The upper half of w1 is fetched from boundary 1 on, but until step 3 is done b stands where the lower half will.
        assert imported.plan.copies == (
            Copy(tensor("a"), "out", 2, 3),
            Copy(tensor("w1"), "in", 4, 4),
            Copy(tensor("a"), "in", 4, 5),
        )

    def test_fast_uses(self, imported: ImportedPlan) -> None:
        assert fast_uses(case("chain")[1], imported.plan) == {
            "a": ["<w0", ">a"],
            "b": ["<a", ">b"],
            "c": ["<b", ">c{0}"],
            "d": ["<b"],
            "e": ["<c{0}", "<w1", ">e"],
            "f": ["<e", "<a"],
        }

    def test_report(self, imported: ImportedPlan) -> None:
        assert (imported.sliced, imported.delayed, imported.preloads) == (1, 1, 1)
        assert (imported.moved, imported.advanced, imported.postponed, imported.mixed_reads, imported.idle) == (0, 0, 0, 0, 0)
        assert not any((imported.dropped, imported.foreign, imported.homeless, imported.replaced))
        assert imported.notes == (
            "1 tensors in fast memory before the program starts (cross-program prefetch)",
            "1 sliced copies merged, 1 of them begin later than their first slice",
        )

    def test_verified_and_named(self, imported: ImportedPlan) -> None:
        problem, program, _ = case("chain")
        assert verify(problem, imported.plan).ok
        assert imported.plan.names[program.value_tensor["w1"]] == "w1"


class TestSlices:
    """The chain where copies in may come in slices: the upper half of ``w1`` need not wait for the place of the lower."""

    @pytest.fixture
    def problem(self) -> Problem:
        return msgspec.structs.replace(case("chain")[0], prefetches="sliced")

    def test_each_slice_begins_when_xla_begins_it(self, problem: Problem) -> None:
        _, program, path = case("chain")
        imported = import_xla_plan(problem, program, path)
        tensor = program.value_tensor.__getitem__
        assert verify(problem, imported.plan).ok
        assert Residency(tensor("w1"), 1, 5, 80 * KIB) in imported.plan.residencies
        assert imported.plan.copies == (
            Copy(tensor("w1"), "in", 1, 4, (16 * KIB, 32 * KIB)),
            Copy(tensor("a"), "out", 2, 3),
            Copy(tensor("w1"), "in", 4, 4, (0, 16 * KIB)),
            Copy(tensor("a"), "in", 4, 5),
        )
        assert (imported.slices, imported.sliced, imported.delayed, imported.postponed) == (1, 0, 0, 0)
        assert "1 copies in slices" in imported.notes

    def test_a_plan_in_slices_is_written_and_read(self, problem: Problem, tmp_path: Path) -> None:
        _, program, path = case("chain")
        plan = import_xla_plan(problem, program, path).plan
        plan.save(tmp_path / "plan.json")
        assert Plan.load(tmp_path / "plan.json") == plan
        # Plans of whole copies are the same files as before there were slices.
        import_xla_plan(*case("chain")).plan.save(tmp_path / "whole.json")
        assert '"part"' not in (tmp_path / "whole.json").read_text()

    def test_made_whole_it_is_the_plan_of_whole_copies(self, problem: Problem) -> None:
        _, program, path = case("chain")
        whole = with_whole_copies(problem, import_xla_plan(problem, program, path).plan)
        assert verify(problem, whole).ok
        strict = import_xla_plan(*case("chain")).plan
        assert (set(whole.residencies), whole.copies) == (set(strict.residencies), strict.copies)


class TestLoop:
    """A loop that reads a weight and updates a sum, both resident throughout; XLA replaced the sum's first copy."""

    @pytest.fixture
    def imported(self) -> ImportedPlan:
        return import_xla_plan(*case("loop"))

    def test_carried_values_stay_for_the_whole_loop(self, imported: ImportedPlan) -> None:
        tensor = case("loop")[1].value_tensor
        assert set(imported.plan.residencies) == {
            Residency(tensor["w"], 0, 6, 0),  # last read in step 3, but the loop [2, 6) comes around
            Residency(tensor["sum.2"], 1, 7, 32 * KIB),
            Residency(tensor["scaled"], 3, 6, 64 * KIB),
        }
        assert imported.plan.copies == (Copy(tensor["w"], "in", 0, 1),)

    def test_replaced_step_writes_to_fast_memory(self, imported: ImportedPlan) -> None:
        assert imported.replaced == ("sum.0",)
        assert fast_uses(case("loop")[1], imported.plan) == {
            "sum.0": [">sum.0"],
            "scaled": ["<sum.0", "<w", ">scaled"],
            "sum.2": ["<scaled", ">sum.0"],
            "y": ["<sum.0"],
        }


class TestDonated:
    """Weights updated in place, copied out between two steps and after the last one, all in one place of fast memory."""

    def imported(self, donation: Donation = "tied", evictions: Evictions = "between_steps") -> tuple[Problem, ImportedPlan]:
        program = read_program(DATA / "donated.hlo.txt", donation=donation)
        problem = make_problem(program, load_target("tpu-v4"), capacity=96 * KIB)
        problem = msgspec.structs.replace(problem, evictions=evictions)
        return problem, import_xla_plan(problem, program, DATA / "donated.plan.hlo.txt")

    def test_with_both_freedoms_it_is_what_xla_does(self) -> None:
        problem, imported = self.imported()
        assert verify(problem, imported.plan).ok
        tensor = {each.name: number for number, each in enumerate(problem.tensors)}
        assert set(imported.plan.residencies) == {
            Residency(tensor["v"], 0, 2, 0),
            Residency(tensor["g"], 0, 3, 32 * KIB),
            Residency(tensor["w"], 2, 4, 0),
            Residency(tensor["h"], 2, 4, 64 * KIB),
        }
        assert imported.plan.copies == (
            Copy(tensor["v"], "in", 0, 0),
            Copy(tensor["v"], "out", 2, 2),
            Copy(tensor["w"], "in", 2, 2),
            Copy(tensor["w"], "out", 4, 4),
        )
        assert len(imported.plan.fast_uses) == problem.use_count - 1  # x is read from slow memory
        assert (imported.moved, imported.advanced, imported.postponed, imported.dropped) == (0, 0, 0, ())
        assert imported.notes == ()

    @pytest.mark.parametrize(("donation", "evictions"), [("free", "between_steps"), ("tied", "whole_steps")])
    def test_each_freedom_is_needed(self, donation: Donation, evictions: Evictions) -> None:
        problem, imported = self.imported(donation, evictions)
        assert verify(problem, imported.plan).ok
        assert imported.moved + len(imported.dropped) > 0


def test_an_asynchronous_collective() -> None:
    """Its start reads one array and makes another; that it has its operand as a result, too, is no place in fast memory."""
    problem, program, plan = case("permute")
    imported = import_xla_plan(problem, program, plan)
    assert fast_uses(program, imported.plan) == {
        "a": [">a"],
        "go": ["<a", ">go{1}"],
        "b": [">b"],
        "there": ["<a", "<go{1}", ">go{1}"],
        "c": ["<go{1}", "<b"],
    }
    assert imported.notes == ()


def test_slices_in_the_short_form(tmp_path: Path) -> None:
    """``slice-start`` does not name the instruction in its computation, so offsets are those of the start's result."""
    problem, program, path = case("chain")
    text, offsets = path.read_text(), find_offsets(path).read_text()
    for name, number, rows in (("low_rows", 1, "[0:32]"), ("high_rows", 2, "[32:64]")):
        text = text.replace(f"async-start(%w1), calls=%{name}", f"slice-start(%w1), slice={{{rows}, [0:128]}}")
        text = text.replace(f"async-done(%slice-start.{number})", f"slice-done(%slice-start.{number})")
        offsets = offsets.replace(f" slice.{number} @", f" slice-start.{number}{{1}} @")
    assert "async" not in text
    short = tmp_path / "short.hlo.txt"
    short.write_text(text)
    short.with_name("short.fastmem.txt").write_text(offsets)
    assert import_xla_plan(problem, program, short) == import_xla_plan(problem, program, path)


class TestWhatRulesForbid:
    """Where our rules are stricter than XLA's, the plan stays valid and the report says so."""

    def placed(self, tmp_path: Path, capacity: int = 192 * KIB, **offsets: int) -> ImportedPlan:
        """The chain with values at other offsets (KiB)."""
        problem, program, plan = case("chain", capacity=capacity)
        lines = (DATA / "chain.plan.fastmem.txt").read_text().splitlines()
        for name, offset in offsets.items():
            old = next(line for line in lines if f" {name} @" in line)
            lines[lines.index(old)] = f" value: <1 {name} @3> (size=32768,offset={offset * KIB}): f32[]"
        path = tmp_path / "offsets.txt"
        path.write_text("\n".join(lines))
        return import_xla_plan(problem, program, plan, path)

    def test_result_in_the_place_of_its_operand_moves(self, tmp_path: Path) -> None:
        imported = self.placed(tmp_path, b=32)
        assert imported.moved == 1
        assert imported.dropped == ()
        assert any("other offsets" in note for note in imported.notes)

    def test_no_other_place(self, tmp_path: Path) -> None:
        imported = self.placed(tmp_path, capacity=64 * KIB)
        assert imported.dropped
        assert {item.reason for item in imported.dropped} == {"its place is taken, and no other is free"}
        assert all(item.size == 32 * KIB and item.traffic >= item.size for item in imported.dropped)
        assert imported.plan.residencies

    def test_preloads_beyond_the_target(self) -> None:
        program = read_program(DATA / "chain.hlo.txt")
        problem = make_problem(program, load_target("teaching"), capacity=1 << 20, stalls="allowed")
        assert problem.max_preloads == 0
        imported = import_xla_plan(problem, program, DATA / "chain.plan.hlo.txt")
        assert imported.preloads == 0
        assert [(item.tensor, item.reason) for item in imported.dropped] == [("w0", "breaks the rule bad_preload")]

    @settings(max_examples=40)
    @given(st.lists(st.integers(0, 47), min_size=9, max_size=9), st.integers(8, 48))
    def test_any_offsets_give_a_valid_plan(
        self, tmp_path_factory: pytest.TempPathFactory, places: list[int], pages: int
    ) -> None:
        problem, program, plan = case("chain", capacity=pages * 4 * KIB)
        text = (DATA / "chain.plan.fastmem.txt").read_text()
        lines = [line for line in text.splitlines() if "@3" in line]
        moved = [f"{line.split('offset=')[0]}offset={place * 4 * KIB}):" for line, place in zip(lines, places, strict=True)]
        path = tmp_path_factory.mktemp("offsets") / "offsets.txt"
        path.write_text("\n".join(moved))
        imported = import_xla_plan(problem, program, plan, path)
        assert verify(problem, imported.plan).ok
        assert set(imported.plan.fast_uses) <= set(import_xla_plan(*case("chain")).plan.fast_uses)
        assert len(imported.plan.residencies) + len(imported.dropped) == 7


class TestBadInput:
    def edited(self, tmp_path: Path, old: str, new: str, name: str = "chain") -> tuple[Problem, Program, Path]:
        problem, program, plan = case(name)
        text = plan.read_text()
        assert old in text
        path = tmp_path / "edited.hlo.txt"
        path.write_text(text.replace(old, new))
        path.with_name("edited.fastmem.txt").write_text(find_offsets(plan).read_text())
        return problem, program, path

    def test_another_program(self) -> None:
        problem, program, _ = case("chain")
        with pytest.raises(InputError, match=r"loop\.plan\.hlo\.txt: line 34: %y: found before any %a \(add\), expected every"):
            import_xla_plan(problem, program, DATA / "loop.plan.hlo.txt")

    def test_step_missing(self, tmp_path: Path) -> None:
        problem, program, path = self.edited(tmp_path, "%f = f32", "%later = f32")
        path.write_text(path.read_text().replace("(%f, %d)", "(%later, %d)"))
        with pytest.raises(InputError, match=r"%g: found before any %f \(add\)"):
            import_xla_plan(problem, program, path)

    def test_another_order(self, tmp_path: Path) -> None:
        late = "  %sum.0 = f32[64,128]{1,0:T(8,128)} copy(%sum.3)\n  ROOT %y ="
        with pytest.raises(InputError, match=r"%sum\.0: found after %sum\.2, expected before it"):
            import_xla_plan(*self.edited(tmp_path, "  ROOT %y =", late, "loop"))

    def test_another_size(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="%g: found 65536 bytes, expected 32768"):
            import_xla_plan(*self.edited(tmp_path, "%g = f32[64,128]", "%g = f32[128,128]"))

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("copy-done(%copy-start.2)", "copy-done()"),
            ("copy-start(%a)", "copy-start()"),
            ("async-done(%slice-start.1)", "async-done(%x)"),
            ("custom-call(%slice-done.1, %slice-done.2)", "custom-call(%x, %w1)"),
            ("get-tuple-element(%c), index=1", "get-tuple-element(%c), index=2"),
        ],
    )
    def test_instructions_that_make_no_sense(self, tmp_path: Path, old: str, new: str) -> None:
        with pytest.raises(InputError, match=r"edited\.hlo\.txt: line \d+: %[\w.\-]+: found"):
            import_xla_plan(*self.edited(tmp_path, old, new))

    def test_not_scheduled(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="is_scheduled=true"):
            import_xla_plan(*self.edited(tmp_path, ", is_scheduled=true", ""))

    def test_value_without_offset(self, tmp_path: Path) -> None:
        problem, program, path = self.edited(tmp_path, "chain", "chain")
        offsets = path.with_name("edited.fastmem.txt")
        offsets.write_text("\n".join(line for line in offsets.read_text().splitlines() if " b @" not in line))
        with pytest.raises(InputError, match=r"edited\.hlo\.txt: line \d+: %b: found no offset of value b"):
            import_xla_plan(problem, program, path)

    def test_no_offsets_file(self, tmp_path: Path) -> None:
        problem, program, path = self.edited(tmp_path, "chain", "chain")
        path.with_name("edited.fastmem.txt").unlink()
        with pytest.raises(InputError, match=r"found no offsets beside it, expected edited\.fastmem\.txt"):
            import_xla_plan(problem, program, path)
        with pytest.raises(InputError, match="cannot read"):
            import_xla_plan(problem, program, path, tmp_path / "nowhere.txt")

    @pytest.mark.parametrize("which", ["edited.hlo.txt", "edited.fastmem.txt"])
    def test_truncated(self, tmp_path: Path, which: str) -> None:
        problem, program, path = self.edited(tmp_path, "chain", "chain")
        broken = path.with_name(which)
        packed = gzip.compress(broken.read_bytes() + b"\n" * 100)
        broken.write_bytes(packed[:-9])
        with pytest.raises(InputError, match=rf"{which}: truncated gzip file"):
            import_xla_plan(problem, program, path)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "found no values"),
            ("HloModule x", "found no values"),
            (" value: <1 a @3> (size=4,offset=-8)", "line 1: found 'value: <1 a @3>"),
            (" value: <1 a @3> (size=4,offset=0)\n value: <2 a @3> (size=4,offset=8)", "line 2: found a at a second place"),
        ],
    )
    def test_offsets_that_make_no_sense(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "offsets.txt"
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            read_offsets(path)

    def test_problem_that_does_not_fit(self) -> None:
        _, program, plan = case("chain")
        with pytest.raises(UsageError, match="different steps"):
            import_xla_plan(case("loop")[0], program, plan)
        with pytest.raises(UsageError, match="forbids stalls"):
            import_xla_plan(case("chain", stalls="forbidden")[0], program, plan)


def test_offsets_beside_packed_plans(tmp_path: Path) -> None:
    for name in ("m.fastmem.txt.gz", "n.fastmem.txt"):
        (tmp_path / name).write_text("")
    assert find_offsets(tmp_path / "m.hlo.txt.gz").name == "m.fastmem.txt.gz"
    assert find_offsets(tmp_path / "n.hlo").name == "n.fastmem.txt"
    assert find_offsets(tmp_path / "n.txt").name == "n.fastmem.txt"


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "share"),
    [
        # Shares of the traffic XLA serves from fast memory, counted straight from the layouts of its modules.
        ("alexnet_train_b32", 0.38),
        ("wavenet_inf_b32", 0.42),
        ("mnasnet_b1_inf_b128", 0.46),
        ("resnet50_train_b32", 0.27),
        ("resnet50_inf_b1", 0.99),
        ("vit_b16_inf_b8", 0.99),
        ("parallel_wavenet_inf_b2", 0.99),
        ("gnn_train_n1024", 0.99),
    ],
)
def test_real_plans(corpus: Path, name: str, share: float) -> None:
    program = read_program(corpus / "tpu_v4" / f"{name}.hlo.txt.gz")
    problem = make_problem(program, load_target("tpu-v4"))
    imported = import_xla_plan(problem, program, corpus / "tpu_v4_xla_plan" / f"{name}.hlo.txt.gz")
    traffic = [use.bytes * step.weight for step in problem.steps for use in step.uses]
    fast = sum(traffic[use] for use in imported.plan.fast_uses)
    assert fast / sum(traffic) == pytest.approx(share, abs=0.04)
    assert sum(item.traffic for item in imported.dropped) <= 0.05 * sum(traffic)
    assert imported.plan.objective < problem.all_slow_ps
    assert not imported.homeless
    assert not imported.foreign
    assert imported.mixed_reads == 0


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["alexnet_train_b32", "gnn_train_n1024", "lstm_scan_train_b32", "parallel_wavenet_inf_b2"])
def test_with_the_freedoms_it_uses_nothing_is_lost(corpus: Path, name: str) -> None:
    program = read_program(corpus / "tpu_v4" / f"{name}.hlo.txt.gz", donation="tied")
    problem = make_problem(program, load_target("tpu-v4"))
    problem = msgspec.structs.replace(problem, evictions="between_steps", prefetches="sliced")
    imported = import_xla_plan(problem, program, corpus / "tpu_v4_xla_plan" / f"{name}.hlo.txt.gz")
    assert verify(problem, imported.plan).ok
    assert (imported.dropped, imported.moved, imported.advanced, imported.delayed) == ((), 0, 0, 0)


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["alexnet_train_b32", "lstm_scan_train_b32", "mnasnet_b1_inf_b128", "rnn_train_b64"])
def test_fast_uses_are_those_of_the_layouts(corpus: Path, name: str) -> None:
    """Reading cycle estimates finds fast uses step by step, from layouts and nothing else; only what was dropped differs."""
    program = read_program(corpus / "tpu_v4" / f"{name}.hlo.txt.gz")
    problem = make_problem(program, load_target("tpu-v4"))
    imported = import_xla_plan(problem, program, corpus / "tpu_v4_xla_plan" / f"{name}.hlo.txt.gz")
    cycles = corpus / "tpu_v4_cycles"
    table = read_cycle_table(cycles / f"{name}.nomsa.hlo.txt.gz", cycles / f"{name}.hlo.txt.gz", program).steps
    fast = set(imported.plan.fast_uses)
    missing = compared = number = 0
    for step in program.steps:
        estimate = table.get(step.name)
        for use in step.uses:
            if estimate is not None and estimate.planned is not None:
                compared += 1
                expected = (use.tensor, use.is_output) in estimate.fast
                assert expected or number not in fast, f"{step.name} uses tensor {use.tensor}"
                missing += use.bytes * step.weight if expected and number not in fast else 0
            number += 1
    assert compared > 0.7 * number
    assert missing <= sum(item.traffic for item in imported.dropped)


@pytest.mark.parametrize("name", ["chain", "loop", "donated"])
def test_fast_memory_in_another_space(tmp_path: Path, name: str) -> None:
    """The same plan where the fast memory is that of later chips: the target says which space is meant."""
    for path in DATA.glob(f"{name}*"):
        text = path.read_text().replace("S(3)", "S(1)").replace(" @3>", " @1>")
        (tmp_path / path.name).write_text(text)
    problem, program = case(name)[:2]
    of_v4 = import_xla_plan(problem, program, DATA / f"{name}.plan.hlo.txt")
    later = msgspec.structs.replace(problem, target="tpu-v5e")
    found = import_xla_plan(later, program, tmp_path / f"{name}.plan.hlo.txt")
    assert found.plan.residencies == of_v4.plan.residencies
    assert found.plan.residencies
    assert (found.plan.copies, found.plan.fast_uses) == (of_v4.plan.copies, of_v4.plan.fast_uses)
    # A target of the user's own says it by its table, not by its name.
    assert import_xla_plan(problem, program, tmp_path / f"{name}.plan.hlo.txt", fast_space=1).plan == of_v4.plan
