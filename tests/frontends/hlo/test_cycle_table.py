"""Reading a compiler's cycle estimates."""

from __future__ import annotations

from pathlib import Path

import pytest

from stowplan.errors import InputError
from stowplan.frontends.hlo import read_program
from stowplan.frontends.hlo.placed import read_cycle_table
from stowplan.hardware.costs import StepCycles, make_problem
from stowplan.hardware.targets import load_target

SLOW = """HloModule m, is_scheduled=true

%body (p: (f32[256], s32[])) -> (f32[256], s32[]) {
  %p = (f32[256]{0}, s32[]) parameter(0)
  %x = f32[256]{0} get-tuple-element(%p), index=0
  %i = s32[] get-tuple-element(%p), index=1
  %twice = f32[256]{0} add(%x, %x), backend_config={"estimated_cycles":"70"}
  %next = s32[] add(%i, %i)
  ROOT %t = (f32[256]{0}, s32[]) tuple(%twice, %next)
}

%cond (p.1: (f32[256], s32[])) -> pred[] {
  %p.1 = (f32[256]{0}, s32[]) parameter(0)
  %i.1 = s32[] get-tuple-element(%p.1), index=1
  %limit = s32[] constant(4)
  ROOT %less = pred[] compare(%i.1, %limit), direction=LT
}

ENTRY %main (a: f32[256], b: f32[256]) -> f32[256] {
  %a = f32[256]{0} parameter(0)
  %b = f32[256]{0} parameter(1)
  %zero = s32[] constant(0)
  %sum = f32[256]{0} add(%a, %b), backend_config={"estimated_cycles":"100"}
  %product = f32[256]{0} multiply(%sum, %b), backend_config={"estimated_cycles":"50"}
  %init = (f32[256]{0}, s32[]) tuple(%product, %zero)
  %loop = (f32[256]{0}, s32[]) while(%init), condition=%cond, body=%body
  %out = f32[256]{0} get-tuple-element(%loop), index=0
  ROOT %result = f32[256]{0} negate(%out), backend_config={"estimated_cycles":"20"}
}
"""

PLANNED = (
    SLOW.replace(
        '%sum = f32[256]{0} add(%a, %b), backend_config={"estimated_cycles":"100"}',
        "%fetch = (f32[256]{0:S(3)}, f32[256]{0}, u32[]{:S(2)}) copy-start(%b)\n"
        "  %b.fast = f32[256]{0:S(3)} copy-done(%fetch)\n"
        '  %sum = f32[256]{0:S(3)} add(%a, %b.fast), backend_config={"estimated_cycles":"60"}',
    )
    .replace("%product = f32[256]{0} multiply(%sum, %b)", "%product = f32[256]{0} multiply(%sum, %b.fast)")
    .replace('"50"', '"30"')
    .replace('"20"', '"21"')
)


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    slow, planned = tmp_path / "m.nomsa.hlo.txt", tmp_path / "m.hlo.txt"
    slow.write_text(SLOW)
    planned.write_text(PLANNED)
    return slow, planned


def test_cycles_and_fast_uses(paths: tuple[Path, Path]) -> None:
    program = read_program(paths[0])
    tensor = program.value_tensor
    table = read_cycle_table(*paths, program)
    assert table.steps == {
        "sum": StepCycles(100, 60, frozenset({(tensor["b"], False), (tensor["sum"], True)})),
        "product": StepCycles(50, 30, frozenset({(tensor["sum"], False), (tensor["b"], False)})),
        "twice": StepCycles(70, 70, frozenset()),
        "result": StepCycles(20, 21, frozenset()),
    }


def test_a_step_that_reads_one_tensor_from_both_memories_keeps_one_estimate(paths: tuple[Path, Path]) -> None:
    slow, planned = paths
    slow.write_text(SLOW.replace("add(%a, %b)", "add(%b, %b)"))
    planned.write_text(PLANNED.replace("add(%a, %b.fast)", "add(%b, %b.fast)"))
    table = read_cycle_table(slow, planned, read_program(slow))
    assert table.steps["sum"] == StepCycles(100)


def test_a_step_that_the_planned_module_changed_keeps_one_estimate(paths: tuple[Path, Path]) -> None:
    slow, planned = paths
    planned.write_text(PLANNED.replace("%product = f32[256]{0} multiply(%sum, %b.fast)", "%product = f32[256]{0} negate(%sum)"))
    table = read_cycle_table(slow, planned, read_program(slow))
    assert table.steps["product"] == StepCycles(50)


def test_modules_without_estimates_are_refused(paths: tuple[Path, Path]) -> None:
    slow, planned = paths
    program = read_program(slow)
    slow.write_text(SLOW.replace("estimated_cycles", "cycles"))
    with pytest.raises(InputError, match=r"m.nomsa.hlo.txt: found no estimated_cycles for any step of"):
        read_cycle_table(slow, planned, program)


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["alexnet_train_b32", "lstm_scan_inf_b32", "resnet50_inf_b1"])
def test_corpus_estimates_are_met_exactly(corpus: Path, name: str) -> None:
    program = read_program(corpus / "tpu_v4" / f"{name}.hlo.txt.gz")
    folder = corpus / "tpu_v4_cycles"
    table = read_cycle_table(folder / f"{name}.nomsa.hlo.txt.gz", folder / f"{name}.hlo.txt.gz", program)
    target = load_target("tpu-v4")
    problem = make_problem(program, target, cycles=table)
    planned = 0
    for step, source in zip(problem.steps, program.steps, strict=True):
        estimate = table.steps.get(source.name)
        if estimate is None:
            continue
        fast = [(use.tensor, use.is_output) in estimate.fast for use in step.uses]
        assert step.latency_ps([False] * len(fast)) == target.cycles_ps(estimate.slow)
        if estimate.planned is not None and any(fast):
            assert step.latency_ps(fast) == target.cycles_ps(estimate.planned)
            planned += 1
    assert planned > len(program.steps) // 3
