"""Signatures of steps, and what compiled modules say of them. The modules are written by hand in a compiler's form."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import stowplan
from stowplan.cli.app import app_for
from stowplan.errors import InputError, UsageError
from stowplan.frontends.hlo import parse_module, program_from_module
from stowplan.frontends.hlo.placed import read_assignment, read_costs, sign_steps
from stowplan.hardware.costs.signatures import LatencyTable, StepPlacement, StepSignature
from stowplan.hardware.targets import load_target

PROGRAM = """HloModule m, is_scheduled=true

%scale (p0: f32[256], p1: f32[]) -> f32[256] {
  %p0 = f32[256]{0} parameter(0)
  %p1 = f32[] parameter(1)
  %wide = f32[256]{0} broadcast(%p1), dimensions={}
  ROOT %scaled = f32[256]{0} multiply(%p0, %wide)
}

%scale.clone (q0: f32[256], q1: f32[]) -> f32[256] {
  %q1 = f32[] parameter(1)
  %wide.1 = f32[256]{0} broadcast(%q1), dimensions={}, metadata={op_name="x"}
  %q0 = f32[256]{0} parameter(0)
  ROOT %scaled.1 = f32[256]{0} multiply(%q0, %wide.1)
}

%body (p: (f32[256], s32[])) -> (f32[256], s32[]) {
  %p = (f32[256]{0}, s32[]) parameter(0)
  %x = f32[256]{0} get-tuple-element(%p), index=0
  %i = s32[] get-tuple-element(%p), index=1
  %twice = f32[256]{0} add(%x, %x)
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  ROOT %t = (f32[256]{0}, s32[]) tuple(%twice, %next)
}

%cond (p.1: (f32[256], s32[])) -> pred[] {
  %p.1 = (f32[256]{0}, s32[]) parameter(0)
  %i.1 = s32[] get-tuple-element(%p.1), index=1
  %limit = s32[] constant(4)
  ROOT %less = pred[] compare(%i.1, %limit), direction=LT
}

ENTRY %main (a: f32[256], b: f32[256], s: f32[]) -> f32[256] {
  %a = f32[256]{0} parameter(0)
  %b = f32[256]{0} parameter(1)
  %s = f32[] parameter(2)
  %zero = s32[] constant(0)
  %first = f32[256]{0} fusion(%a, %s), kind=kLoop, calls=%scale
  %second = f32[256]{0} fusion(%b, %s), kind=kLoop, calls=%scale.clone
  %sum = f32[256]{0} add(%first, %second)
  %init = (f32[256]{0}, s32[]) tuple(%sum, %zero)
  %loop = (f32[256]{0}, s32[]) while(%init), condition=%cond, body=%body
  %out = f32[256]{0} get-tuple-element(%loop), index=0
  ROOT %result = f32[256]{0} add(%out, %b)
}
"""
CYCLES = {"first": 100, "second": 100, "sum": 60, "twice": 30, "result": 60}


def compiled(cycles: dict[str, int], *changes: tuple[str, str]) -> str:
    """The module as a compiler leaves it: cycles in the backend configuration, and other changes of the text."""
    lines = []
    for line in PROGRAM.splitlines():
        name = line.strip().removeprefix("ROOT ").partition(" ")[0].removeprefix("%")
        if name in cycles and "parameter" not in line:
            line += f', backend_config={{"window_config":{{"estimated_cycles":"{cycles[name]}"}}}}'
        lines.append(line)
    text = "\n".join(lines) + "\n"
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


SLOW = compiled(CYCLES)
FIRST_FAST = compiled(
    CYCLES | {"first": 80, "sum": 55},
    ("%first = f32[256]{0} fusion", "%first = f32[256]{0:S(3)} fusion"),
)
COPIED = compiled(
    CYCLES | {"second": 90, "result": 75},
    (
        "%second = f32[256]{0} fusion(%b, %s)",
        "%fetch = (f32[256]{0:S(3)}, f32[256]{0}, u32[]{:S(2)}) copy-start(%b)\n"
        "  %b.fast = f32[256]{0:S(3)} copy-done(%fetch)\n"
        "  %second = f32[256]{0} fusion(%b.fast, %s)",
    ),
    ("add(%out, %b)", "add(%out, %b.fast)"),
)


@pytest.fixture
def signatures() -> dict[str, StepSignature]:
    module = parse_module(PROGRAM)
    return sign_steps(module, program_from_module(module))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {"program": PROGRAM, "slow": SLOW, "first": FIRST_FAST, "copied": COPIED}.items():
        (tmp_path / f"{name}.hlo.txt").write_text(text)
    return tmp_path


def signed(text: str) -> dict[str, StepSignature]:
    module = parse_module(text)
    return sign_steps(module, program_from_module(module))


def test_equal_instructions_have_equal_signatures(signatures: dict[str, StepSignature]) -> None:
    assert signatures["first"].signature == signatures["second"].signature
    assert signatures["sum"].signature == signatures["result"].signature
    # Of an array twice it reads one array.
    assert signatures["twice"].signature != signatures["sum"].signature
    assert signatures["twice"].weight == 4
    assert signatures["first"].kind == "kLoop"
    assert dict(signatures["first"].inner) == {"broadcast": 1, "multiply": 1, "parameter": 2}


@pytest.mark.parametrize(
    ("old", "new"),
    [("f32[256]{0}", "f32[512]{0}"), ("f32[256]{0}", "bf16[256]{0}"), ("multiply", "divide"), ("kLoop", "kInput")],
)
def test_what_changes_the_work_changes_the_signature(signatures: dict[str, StepSignature], old: str, new: str) -> None:
    changed = signed(PROGRAM.replace(old, new).replace("f32[256]", "f32[512]" if "512" in new else "f32[256]"))
    assert changed["first"].signature != signatures["first"].signature


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("f32[256]{0}", "f32[256]{0:S(3)}"),
        ("%scaled", "%other"),
        (", kind=kLoop", ', kind=kLoop, metadata={op_name="y"}, backend_config={"a":["1"]}'),
    ],
)
def test_names_memories_and_notes_do_not(signatures: dict[str, StepSignature], old: str, new: str) -> None:
    assert signed(PROGRAM.replace(old, new))["first"].signature == signatures["first"].signature


def test_assignments(signatures: dict[str, StepSignature]) -> None:
    slow = read_assignment(parse_module(SLOW), signatures)
    assert {name: each.cycles for name, each in slow.steps.items() if each.cycles} == CYCLES
    assert not any(each.pattern for each in slow.steps.values())
    assert slow.cycles(signatures) == 100 + 100 + 60 + 4 * 30 + 60
    first = read_assignment(parse_module(FIRST_FAST), signatures)
    assert first.steps["first"] == StepPlacement(0b100, 80)
    assert first.steps["sum"] == StepPlacement(0b001, 55)
    copied = read_assignment(parse_module(COPIED), signatures)
    assert copied.steps["second"] == StepPlacement(0b001, 90)
    assert copied.steps["result"] == StepPlacement(0b010, 75)


def test_steps_that_the_compiled_module_changed_are_left_out(signatures: dict[str, StepSignature]) -> None:
    text = compiled(
        CYCLES, ("add(%first, %second)", "negate(%first)"), ("%result = f32[256]{0} add", "%other = f32[256]{0} add")
    )
    assert {"sum", "result"}.isdisjoint(read_assignment(parse_module(text), signatures).steps)


def test_a_module_without_cycles_is_refused(signatures: dict[str, StepSignature], folder: Path) -> None:
    with pytest.raises(InputError, match=r"program\.hlo\.txt: found no estimated_cycles for any step"):
        read_assignment(folder / "program.hlo.txt", signatures)


def test_the_problem_meets_every_compile_exactly(folder: Path) -> None:
    paths = [folder / f"{name}.hlo.txt" for name in ("slow", "first", "copied")]
    problem = stowplan.read(folder / "program.hlo.txt", "tpu-v4", cost_model="signatures", cycles=paths)
    assert problem.cost_model == "signatures"
    target = load_target("tpu-v4")
    module = parse_module(PROGRAM)
    signatures = sign_steps(module, program_from_module(module))
    steps = {step.name: step for step in problem.steps}
    for path in paths:
        for name, each in read_assignment(path, signatures).steps.items():
            if each.cycles is not None:
                fast = [bool(signatures[name].used_leaves()[use] & each.pattern) for use in range(len(steps[name].uses))]
                assert steps[name].latency_ps(fast) == target.cycles_ps(each.cycles)
    # What was measured of one step holds for its equals: "first" was never compiled with a fast operand, "second" was.
    assert steps["first"].latency_ps([True, False, False]) == target.cycles_ps(90)


def test_a_table_file_says_the_same_as_the_modules(folder: Path) -> None:
    module = parse_module(PROGRAM)
    program = program_from_module(module)
    paths = [folder / "slow.hlo.txt", folder / "first.hlo.txt"]
    costs = read_costs(paths, module, program)
    costs.table.save(folder / "table.json")
    read = [
        stowplan.read(folder / "program.hlo.txt", "tpu-v4", cost_model="signatures", cycles=cycles)
        for cycles in (paths, folder / "table.json", [folder / "table.json", folder / "slow.hlo.txt"])
    ]
    assert len({each.digest for each in read}) == 1
    # One table needs no name of a model; two modules still mean the table model.
    assert stowplan.read(folder / "program.hlo.txt", "tpu-v4", cycles=folder / "table.json").cost_model == "signatures"
    assert stowplan.read(folder / "program.hlo.txt", "tpu-v4", cycles=paths).cost_model == "table"


def test_compiles_that_contradict_each_other_are_noted(folder: Path) -> None:
    (folder / "other.hlo.txt").write_text(compiled(CYCLES | {"twice": 31}))
    paths = [folder / "slow.hlo.txt", folder / "other.hlo.txt", folder / "first.hlo.txt"]
    problem = stowplan.read(folder / "program.hlo.txt", "tpu-v4", cycles=paths)
    assert problem.notes[-1] == "2 entries of the latency table had two cycles, the last count: compilers differ"


def test_files_that_do_not_fit_are_refused(folder: Path) -> None:
    program = folder / "program.hlo.txt"
    with pytest.raises(UsageError, match="found 1 files with cycles, expected two for the cost model 'table'"):
        stowplan.read(program, "tpu-v4", cost_model="table", cycles=folder / "slow.hlo.txt")
    LatencyTable().save(folder / "empty.json")
    with pytest.raises(InputError, match=r"empty\.json: found no entry for any step of program/m"):
        stowplan.read(program, "tpu-v4", cycles=folder / "empty.json")
    (folder / "other.json").write_text('{"format": "x", "version": 1}')
    with pytest.raises(InputError, match=r"other\.json: format: found format 'x', expected 'stowplan.latency_table'"):
        stowplan.read(program, "tpu-v4", cycles=folder / "other.json")


def test_the_command_line_takes_any_number_of_files(folder: Path) -> None:
    arguments = ["convert", str(folder / "program.hlo.txt"), "--target", "tpu-v4", "-o", str(folder / "problem.json")]
    cycles = [part for name in ("slow", "first", "copied") for part in ("--set", f"cycles={folder / name}.hlo.txt")]
    found = CliRunner().invoke(app_for(arguments), [*arguments, *cycles])
    assert found.exit_code == 0, found.output
    assert stowplan.read(folder / "problem.json").cost_model == "signatures"
    refused = CliRunner().invoke(app_for(arguments), [*arguments, *cycles, "--set", "cost_model=table"])
    assert isinstance(refused.exception, UsageError)
    assert "found 3 files with cycles" in str(refused.exception)
