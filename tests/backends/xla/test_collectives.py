"""Cycles of collectives by bytes over links, on modules by hand."""

from __future__ import annotations

import pytest

from stowplan.backends.xla.collectives import collective_cycles
from stowplan.backends.xla.score import scored_program
from stowplan.frontends.hlo import parse_module, program_from_module
from stowplan.hardware.targets import load_target

TARGET = load_target("tpu-v5e")
#: Cycles of 1 MiB over one link, 50 GB/s at 1.5 GHz.
MIB = 2**20 / 50e9 * 1.5e9

BIG, PART = "f32[1024,1024]{1,0}", "f32[256,1024]{1,0}"
ESTIMATE = 'backend_config={"window_config":{"estimated_cycles":"10000"}}'


def cycles(body: str, before: str = "") -> dict[str, int]:
    text = (
        f"HloModule m, is_scheduled=true, num_partitions=4\n{before}\nENTRY %main (x: f32[1024,1024]) -> f32[] {{\n{body}\n}}\n"
    )
    return collective_cycles(parse_module(text), TARGET)


@pytest.mark.parametrize(
    ("line", "mib"),
    [
        # Three quarters of 4 MiB, by two links; once to reduce and once to gather.
        (f"{BIG} all-reduce(%x), replica_groups={{{{0,1,2,3}}}}, to_apply=%sum", 3.0),
        (f"{BIG} all-reduce(%x), replica_groups={{}}, to_apply=%sum", 3.0),
        # Groups of two have one link.
        (f"{BIG} all-reduce(%x), replica_groups=[2,2]<=[4], to_apply=%sum", 4.0),
        (f"{BIG} all-reduce(%x), replica_groups=mesh['a'=2,'b'=2] {{'a'}}, to_apply=%sum", 4.0),
        (f"{BIG} all-reduce(%x), replica_groups=mesh['a'=2,'b'=2] {{'a','b'}}, to_apply=%sum", 3.0),
        (f"{PART} reduce-scatter(%x), replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}, to_apply=%sum", 1.5),
        (f"{BIG} all-gather(%small), replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}", 1.5),
        (f"{BIG} all-to-all(%x), replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}", 1.5),
        (f"{BIG} all-reduce(%x), replica_groups={{{{0}},{{1}},{{2}},{{3}}}}, to_apply=%sum", 0.0),
        (f"{PART} fusion(%x), kind=kCustom, calls=%all-reduce-scatter", 1.5),
    ],
)
def test_bytes_over_links(line: str, mib: float) -> None:
    before = f"""%sum (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}}
%all-reduce-scatter (p: f32[1024,1024]) -> f32[256,1024] {{
  %p = {BIG} parameter(0)
  %whole = {BIG} all-reduce(%p), replica_groups={{{{0,1,2,3}}}}, to_apply=%sum
  ROOT %part = {PART} slice(%whole), slice={{[0:256], [0:1024]}}
}}"""
    body = f"  %x = {BIG} parameter(0)\n  %small = {PART} slice(%x), slice={{[0:256], [0:1024]}}\n  ROOT %found = {line}"
    assert cycles(body, before) == {"found": pytest.approx(mib * MIB, abs=1)}


def asynchronous(between: str) -> str:
    return f"""  %x = {BIG} parameter(0)
  %go = ({BIG}, {BIG}, u32[], u32[]) collective-permute-start(%x), source_target_pairs={{{{0,1}},{{1,0}}}}
{between}
  ROOT %there = {BIG} collective-permute-done(%go)"""


def test_what_runs_beside_is_not_waited_for() -> None:
    assert cycles(asynchronous("")) == {"go": pytest.approx(4 * MIB, abs=1)}
    assert cycles(asynchronous(f"  %y = {BIG} negate(%x), {ESTIMATE}")) == {"go": pytest.approx(4 * MIB - 10_000, abs=1)}
    lines = "\n".join(f"  %y.{number} = {BIG} negate(%x), {ESTIMATE}" for number in range(20))
    assert cycles(asynchronous(lines)) == {"go": 0}


def test_a_program_of_one_device_has_none() -> None:
    text = f"HloModule m, is_scheduled=true\nENTRY %main (x: f32[1024,1024]) -> f32[] {{\n{asynchronous('')}\n}}\n"
    assert collective_cycles(parse_module(text), TARGET) == {}


def test_a_pair_is_one_step() -> None:
    """The result is what the start made, and what it reads is alive until it is done."""
    text = f"HloModule m, is_scheduled=true\nENTRY %main (x: f32[1024,1024]) -> f32[] {{\n{asynchronous('')}\n}}\n"
    program = program_from_module(parse_module(text))
    assert [step.name for step in program.steps] == ["go"]
    assert program.value_tensor["there"] == program.value_tensor["go{1}"]
    assert program.value_tensor["go{0}"] == program.value_tensor["x"]


def test_links_are_counted_here_so_nobody_is_warned_of_them(recwarn: pytest.WarningsRecorder) -> None:
    text = f"HloModule m, is_scheduled=true\nENTRY %main (x: f32[1024,1024]) -> f32[] {{\n{asynchronous('')}\n}}\n"
    assert [step.name for step in scored_program(parse_module(text)).steps] == ["go"]
    assert not recwarn


def test_the_short_form_of_an_asynchronous_collective() -> None:
    groups = "replica_groups={{0,1,2,3}}"
    body = f"  %x = {BIG} parameter(0)\n  %go = (({BIG}), {PART}, u32[]) reduce-scatter-start(%x), dimensions={{0}}, {groups}\n"
    body += f"  ROOT %there = {PART} reduce-scatter-done(%go)"
    assert cycles(body) == {"go": pytest.approx(1.5 * MIB, abs=1)}
