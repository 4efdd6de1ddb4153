"""What HLO says in several ways is read alike; what is not modelled is refused or named; host memory is not the device's."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest

from stowplan.errors import InputError
from stowplan.frontends.affine.hlo import affine_program
from stowplan.frontends.graph.hlo import read_hlo
from stowplan.frontends.hlo import parse_module, program_from_module
from stowplan.frontends.hlo.opcodes import (
    CUSTOM_CALLS,
    ENDS,
    HOST,
    NAMING,
    OPCODES,
    SAME_VALUE_CALLS,
    SPACES,
    STARTS,
    UNMODELLED_TIMES,
)
from stowplan.frontends.hlo.placed import sign_steps
from stowplan.frontends.options import ReadOptions
from stowplan.frontends.read import open_input
from stowplan.hardware.program import Program
from stowplan.log import UnmodelledWarning
from stowplan.models.memory_mapping.problem import InFlight
from stowplan.models.operator_order.problem import of_graph

V = "f32[256]{0}"
HELPERS = (
    f"%fused (a: f32[256]) -> f32[256] {{\n  %a = {V} parameter(0)\n  ROOT %n = {V} negate(%a)\n}}\n\n"
    "%sum (x: f32[], y: f32[]) -> f32[] {\n  %x = f32[] parameter(0)\n  %y = f32[] parameter(1)\n"
    "  ROOT %s = f32[] add(%x, %y)\n}\n\n"
)


def module(body: str, before: str = HELPERS, header: str = ", is_scheduled=true") -> str:
    return f"HloModule m{header}\n\n{before}ENTRY %main () -> f32[] {{\n{body}\n}}\n"


def program(body: str, before: str = HELPERS) -> Program:
    return program_from_module(parse_module(module(body, before)))


def order_of(text: str, folder: Path) -> object:
    path = folder / "m.hlo"
    path.write_text(text)
    return of_graph(read_hlo(path))


#: Operation, shapes of its operands and its result, and its attributes.
OPERATIONS = [
    ("custom-call", [V], V, ', custom_call_target="send_it"'),
    ("custom-call", [V], V, ', custom_call_target="send_it", output_to_operand_aliasing={{}: (0, {})}'),
    ("custom-call", [V, V], f"({V}, {V})", ', custom_call_target="send_it", output_to_operand_aliasing={{1}: (0, {})}'),
    ("fusion", [V], V, ", kind=kLoop, calls=%fused"),
    ("slice", [V], "f32[64]{0}", ", slice={[0:64]}"),
    ("dynamic-slice", [V, "s32[]"], "f32[64]{0}", ", dynamic_slice_sizes={64}"),
    ("dynamic-update-slice", [V, "f32[64]{0}", "s32[]"], V, ""),
    ("reduce-scatter", [V], "f32[64]{0}", ", dimensions={0}, replica_groups={{0,1,2,3}}, to_apply=%sum"),
    ("all-to-all", [V], V, ", dimensions={0}"),
    ("gather", ["f32[8,4]{1,0}", "s32[3]{0}"], "f32[3,4]{1,0}", ", offset_dims={1}, index_vector_dim=1, slice_sizes={1,4}"),
    ("convolution", ["f32[2,8,3]", "f32[2,3,5]"], "f32[2,7,5]", ", window={size=2}, dim_labels=b0f_0io->b0f"),
]


def both_forms(opcode: str, operands: list[str], result: str, attributes: str) -> tuple[str, str]:
    """One asynchronous operation, in XLA's short form and with its computation written out."""
    given = [f"  %p{number} = {shape} parameter({number})" for number, shape in enumerate(operands)]
    made = [f"  %q{number} = {shape} copy(%p{number})" for number, shape in enumerate(operands)]
    names = ", ".join(f"%q{number}" for number in range(len(operands)))
    inner = [f"  %i{number} = {shape} parameter({number})" for number, shape in enumerate(operands)]
    root = f"  ROOT %r = {result} {opcode}({', '.join(f'%i{number}' for number in range(len(operands)))}){attributes}"
    wrapped = "%wrapped () -> f32[] {\n" + "\n".join((*inner, root)) + "\n}\n\n"
    head = f"  %s = (({', '.join(operands)}), {result}, u32[]) "
    own = ', backend_config={"window_config":{"estimated_cycles":"77"}}'
    tail = "  %u = f32[256]{0} constant({...})\n  %e = f32[256]{0} exponential(%u)\n"
    update = head.replace("%s", "%v")
    short = f"{head}{opcode}-start({names}){attributes}{own}\n{update}{opcode}-update(%s)\n"
    short += f"{tail}  ROOT %d = {result} {opcode}-done(%v)"
    full = (
        f"{head}async-start({names}), calls=%wrapped{own}\n  %v = (({', '.join(operands)}), {result}, u32[]) async-update(%s)\n"
    )
    full += f"{tail}  ROOT %d = {result} async-done(%v)"
    before = "\n".join((*given, *made)) + "\n"
    return module(before + short), module(before + full, HELPERS + wrapped)


@pytest.mark.filterwarnings("ignore::stowplan.log.UnmodelledWarning")
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: f"{operation[0]}-{len(operation[3])}")
def test_both_forms_of_an_asynchronous_operation(operation: tuple[str, list[str], str, str], tmp_path: Path) -> None:
    short, full = both_forms(*operation)
    modules = [parse_module(text) for text in (short, full)]
    programs = [program_from_module(each) for each in modules]
    assert programs[0] == programs[1]
    assert [step.name for step in programs[0].steps if step.opcode == "async-start"] == ["s"]
    signed = [sign_steps(each, found) for each, found in zip(modules, programs, strict=True)]
    assert signed[0] == signed[1]
    assert order_of(short, tmp_path) == order_of(full, tmp_path)
    assert programs[0].steps[programs[0].step_index["s"]].cycles == 77


@pytest.mark.filterwarnings("ignore::stowplan.log.UnmodelledWarning")
def test_a_call_is_its_own_computation(tmp_path: Path) -> None:
    start = f"  %p = {V} parameter(0)\n  %s = (({V}), {V}, u32[]) "
    short = module(f"{start}call-start(%p), to_apply=%fused\n  ROOT %d = {V} call-done(%s)")
    full = module(f"{start}async-start(%p), calls=%fused\n  ROOT %d = {V} async-done(%s)")
    assert program_from_module(parse_module(short)) == program_from_module(parse_module(full))
    assert order_of(short, tmp_path) == order_of(full, tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%s = f32[256]{0} custom-call-start(%p), custom_call_target=\"x\"", "expected a tuple of operands and results"),
        (f"%s = (({V}), {V}, u32[]) fusion-start(%p), kind=kLoop", "found fusion with 0 called computations"),
        (f"%s = (({V}), {V}, u32[]) async-start(%p)", "found async-start without attributes"),
        ("%s = () async-start(%p), calls=%fused", "expected a tuple of operands and results"),
        (f"%s = (({V}), {V}, u32[]) nothing-start(%p)", "found opcode 'nothing-start', expected one of HLO's"),
        (f"%s = {V} frobnicate(%p)", "found opcode 'frobnicate', expected one of HLO's"),
        (f"%s = {V} custom-call-done(%p)", "expected the tuple of an asynchronous start"),
        ("%s = () send(%p)", "expected a tuple of operands and results"),
    ],
)  # fmt: skip
def test_what_is_no_operation_is_refused(line: str, message: str) -> None:
    with pytest.raises(InputError, match=r"line \d+") as caught:
        program(f"  %p = {V} parameter(0)\n  {line}")
    assert message in str(caught.value)


@pytest.mark.filterwarnings("ignore::stowplan.log.UnmodelledWarning")
@pytest.mark.parametrize(
    ("lines", "together"),
    [
        # An update in place, alone and asynchronous: the operand is not held until the end, it is the result.
        (f"%s = {V} dynamic-update-slice(%a, %u, %z)", {"a", "s"}),
        (f"%s = (({V}, f32[64], s32[]), {V}, u32[]) dynamic-update-slice-start(%a, %u, %z)\n"
         f"%d = {V} dynamic-update-slice-done(%s)",
         {"a", "s{1}"}),
        (f"%s = (({V}), {V}, u32[]) custom-call-start(%a), output_to_operand_aliasing={{{{}}: (0, {{}})}}\n"
         f"%d = {V} custom-call-done(%s)", {"a", "s{1}"}),
        (f"%s = (({V}), {V}, u32[]) call-start(%a), to_apply=%fused, output_to_operand_aliasing={{{{1}}: (0, {{}})}}\n"
         f"%d = {V} call-done(%s)", {"a", "s{1}"}),
        (f"%s = {V} all-reduce-start(%a), to_apply=%sum\n%d = {V} all-reduce-done(%s)", {"a", "s"}),
        (f"%s = ({V}, {V}) scatter(%a, %b, %i, %u, %u), to_apply=%sum\n%d = {V} get-tuple-element(%s), index=1", {"b", "s{1}"}),
        (f"%s = {V} ragged-all-to-all(%b, %a, %i, %i, %i, %i)", {"a", "s"}),
        (f"%s = ({V}, {V}, u32[], u32[]) collective-permute-start(%b, %a, %z, %z)\n%d = {V} collective-permute-done(%s)",
         {"a", "s{1}"}),
    ],
)  # fmt: skip
def test_results_in_the_place_of_operands(lines: str, together: set[str]) -> None:
    given = f"  %p = {V} parameter(0)\n  %u = f32[64] parameter(1)\n  %z = s32[] parameter(2)\n  %i = s32[4] parameter(3)\n"
    found = program(f"{given}  %a = {V} negate(%p)\n  %b = {V} exponential(%p)\n{lines}\n  ROOT %r = {V} negate(%p)")
    assert together in [set(tensor.members) for tensor in found.tensors]


@pytest.mark.filterwarnings("ignore::stowplan.log.UnmodelledWarning")
def test_what_is_sent_stays_where_it_is() -> None:
    found = program(
        f"  %p = {V} parameter(0)\n  %a = {V} negate(%p)\n  %t = token[] after-all()\n"
        f"  %s = ({V}, u32[], token[]) send(%a, %t), channel_id=1\n  %r = ({V}, u32[], token[]) recv(%t), channel_id=2\n"
        f"  %e = {V} exponential(%p)\n  %sd = token[] send-done(%s), channel_id=1\n"
        f"  %rd = ({V}, token[]) recv-done(%r), channel_id=2\n  %g = {V} get-tuple-element(%rd), index=0\n"
        f"  ROOT %o = {V} add(%e, %g)"
    )
    assert [tensor.name for tensor in found.tensors] == ["p", "a", "r{0}", "e", "o"]
    assert [step.name for step in found.steps] == ["a", "s", "r", "e", "sd", "rd", "o"]
    assert found.in_flight == (InFlight(1, 1, 5), InFlight(2, 2, 6))


HOST_MODULE = module(
    f"  %b = {V} parameter(1)\n  %a = {V} parameter(0)\n  %h = f32[256]{{0:S(5)}} parameter(2)\n  %n = s32[] parameter(3)\n"
    f"  %sum = {V} add(%a, %b)\n"
    f"  %out = (f32[256]{{0:S(5)}}, {V}, u32[]) copy-start(%sum)\n  %t1 = {V} tanh(%sum)\n"
    f"  %out.done = f32[256]{{0:S(5)}} copy-done(%out)\n  %t2 = {V} tanh(%t1)\n"
    f"  %new = f32[256]{{0:S(5)}} dynamic-update-slice(%h, %t1, %n)\n"
    f"  %in = ({V}, f32[256]{{0:S(5)}}, u32[]) copy-start(%out.done)\n  %t3 = {V} tanh(%t2)\n"
    f"  %in.done = {V} copy-done(%in)\n  ROOT %r = {V} multiply(%t3, %in.done)"
)


def test_host_memory_is_not_the_devices(tmp_path: Path) -> None:
    path = tmp_path / "offload.hlo"
    path.write_text(HOST_MODULE)
    opened = open_input(path, ReadOptions(target="teaching"))
    names = {tensor.name for tensor in opened.problem.tensors}
    assert names == {"a", "b", "n", "sum", "t1", "t2", "in{0}", "t3", "r"}
    link = "moves data between device and host: the time of their link is not counted"
    assert opened.warnings == (
        f"instruction out and 1 more: copy-start {link}",
        f"instruction new: dynamic-update-slice {link}",
    )
    order = open_input(path, ReadOptions(target="order"))
    assert {tensor.id for tensor in order.problem.tensors} == names
    assert order.warnings == ()


def test_host_memory_is_named_where_banks_are_planned() -> None:
    text = module("  %a = f32[8]{0:S(5)} parameter(0)\n  ROOT %b = f32[8] negate(%a)", "", "")
    with pytest.warns(UnmodelledWarning, match=r"memory space S\(5\) counts as the device's"):
        affine_program(parse_module(text))


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        (f'%s = {V} custom-call(%p), custom_call_target="mine"', "custom call of 'mine': its arithmetic and memory of its own"),
        (f'%s = {V} custom-call(%p), custom_call_target="tpu_custom_call"', "a Mosaic kernel"),
        (f'%s = {V} custom-call(%p), custom_call_target="Sharding"', "not partitioned yet"),
        (f'%s = {V} custom-call(%p), custom_call_target="annotate_device_placement"', "what is to go to the host"),
        ("%s = f32[256]{0:S(9)} negate(%p)", r"memory space S\(9\) counts as the device's"),
        (f"%s = {V} all-reduce(%p), to_apply=%sum", "all-reduce exchanges data between devices"),
        (f"%s = {V} sort(%p), dimensions={{0}}, to_apply=%sum", "sort counts as one operation for each element"),
        (f'%s = (({V}), {V}, u32[]) call-start(%p), async_execution_thread="host", to_apply=%fused', "on '\"host\"'"),
        (f"%s = (({V}), {V}, u32[]) async-start(%p), calls=%twice", "memory of the computation's own counts as none"),
        ("%s = ((f32[4]), token[]) infeed(%t)", "infeed moves data between device and host"),
    ],
)
def test_what_is_not_modelled_is_named(line: str, warning: str) -> None:
    twice = f"%twice (a: f32[256]) -> f32[256] {{\n  %a = {V} parameter(0)\n  %n = {V} negate(%a)\n  ROOT %m = {V} negate(%n)"
    twice += "\n}\n\n"
    with pytest.warns(UnmodelledWarning, match=f"instruction s: .*{warning}|instruction s: {warning}"):
        program(f"  %p = {V} parameter(0)\n  %t = token[] after-all()\n  {line}\n  ROOT %r = {V} negate(%p)", HELPERS + twice)


def test_loops_and_branches_are_named() -> None:
    predicate = f"%never (a: f32[256]) -> pred[] {{\n  %a = {V} parameter(0)\n  ROOT %c = pred[] constant(true)\n}}\n\n"
    start = f"  %p = {V} parameter(0)\n  %c = pred[] parameter(1)\n"
    with pytest.warns(UnmodelledWarning, match="while w: its trip count cannot be told"):
        program(f"{start}  ROOT %w = {V} while(%p), condition=%never, body=%fused", HELPERS + predicate)
    with pytest.warns(UnmodelledWarning, match="instruction w: conditional counts with all its branches"):
        program(f"{start}  ROOT %w = {V} conditional(%c, %p, %p), true_computation=%fused, false_computation=%fused")


@pytest.mark.parametrize("target", sorted(CUSTOM_CALLS))
def test_each_known_custom_call(target: str, recwarn: pytest.WarningsRecorder) -> None:
    found = program(
        f'  %p = {V} parameter(0)\n  %a = {V} negate(%p)\n  %s = {V} custom-call(%a), custom_call_target="{target}"\n'
        f"  ROOT %r = {V} negate(%s)"
    )
    assert ("s" in found.step_index) == (target not in SAME_VALUE_CALLS)
    assert [str(each.message) for each in recwarn] == (
        [f"instruction s: custom call of '{target}': {CUSTOM_CALLS[target]}"] if CUSTOM_CALLS[target] else []
    )


def test_the_table() -> None:
    assert STARTS.keys() | ENDS.keys() | NAMING | UNMODELLED_TIMES.keys() <= OPCODES
    assert CUSTOM_CALLS.keys() >= SAME_VALUE_CALLS
    assert HOST in SPACES
    assert not any(f"{opcode}-start" in OPCODES for opcode in ("fusion", "custom-call", "slice", "call", "while"))


REFUSED = [
    "f32[47]{0} reshape(%m)",
    "f32[47]{0} bitcast(%m)",
    "f32[2,48]{1,0} transpose(%m), dimensions={1,0}",
    "f32[6,9]{1,0} copy(%m)",
    "f32[6,9]{1,0} reverse(%m), dimensions={0}",
    "f32[6,8,3]{2,1,0} broadcast(%m), dimensions={0,2}",
    "f32[13,8]{1,0} concatenate(%m, %m), dimensions={0}",
    "f32[4,8]{1,0} slice(%m), slice={[0:3], [0:8]}",
    "f32[7,8]{1,0} slice(%m), slice={[0:7], [0:8]}",
    "f32[9,8]{1,0} dynamic-slice(%m, %z, %z), dynamic_slice_sizes={9,8}",
    "f32[5,8]{1,0} dynamic-update-slice(%m, %m, %z, %z)",
    "f32[8,8]{1,0} pad(%m, %f), padding=1_0x0_0",
    "f32[7]{0} reduce(%m, %f), dimensions={1}, to_apply=%sum",
    "f32[6,7]{1,0} dot(%m, %m), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
    "f32[2,7,6]{2,1,0} convolution(%x, %k), window={size=2}, dim_labels=b0f_0io->b0f",
    "f32[3,5]{1,0} gather(%m, %i), offset_dims={1}, index_vector_dim=1, slice_sizes={1,4}",
    "f32[6,7]{1,0} add(%m, %m)",
    "f32[6,8]{1,0} add(%m, %v)",
    "f32[6,8]{1,0} select(%v, %m, %m)",
    "f32[6,8]{1,0} add(%m, %f)",
    "f16[6,8]{1,0} bitcast-convert(%m)",
    "f32[6,7]{1,0} all-reduce(%m), to_apply=%sum",
    "(f32[6,7]{1,0}, f32[6,8]{1,0}, u32[]) copy-start(%m)",
    "((f32[6,8]{1,0}), f32[4,8]{1,0}, u32[]) slice-start(%m), slice={[0:3], [0:8]}",
]


@pytest.mark.parametrize("line", REFUSED)
def test_sizes_that_do_not_follow_from_operands(line: str, tmp_path: Path) -> None:
    given = (
        "  %m = f32[6,8]{1,0} parameter(0)\n  %v = f32[8]{0} parameter(1)\n  %f = f32[] parameter(2)\n"
        "  %z = s32[] parameter(3)\n"
        "  %x = f32[2,8,3] parameter(4)\n  %k = f32[2,3,5] parameter(5)\n  %i = s32[3]{0} parameter(6)\n"
    )
    text = module(f"{given}  ROOT %s = {line}")
    with pytest.raises(InputError, match=r"line \d+: %s: found a result of \d+ elements, expected \d+ of its operands"):
        program_from_module(parse_module(text))
    with pytest.raises(InputError, match=r"m\.hlo: line \d+: %s: found a result of"):
        order_of(text, tmp_path)


@pytest.mark.filterwarnings("ignore::stowplan.log.UnmodelledWarning")
@pytest.mark.parametrize(
    "line",
    [
        "f32[8,6]{1,0} transpose(%m), dimensions={1,0}",
        "f32[6,8,3]{2,1,0} broadcast(%m), dimensions={0,1}",
        "f32[3,4]{1,0} slice(%m), slice={[0:6:2], [1:8:2]}",
        "f32[13,8]{1,0} pad(%m, %f), padding=1_1_1x0_0",
        "f32[6,6]{1,0} dot(%m, %m), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
        "f32[6,8]{1,0} clamp(%f, %m, %f)",
        "f32[6,8]{1,0} select(%q, %m, %m)",
        "f16[6,8,2]{2,1,0} bitcast-convert(%m)",
        # XLA takes the padding of tiles for elements.
        "f32[16,128]{1,0:T(8,128)} bitcast(%t)",
        "(f32[6]{0}, s32[6]{0}) reduce(%m, %n, %f, %z), dimensions={1}, to_apply=%sum",
    ],
)  # fmt: skip
def test_sizes_that_do(line: str) -> None:
    given = (
        "  %m = f32[6,8]{1,0} parameter(0)\n  %n = s32[6,8]{1,0} parameter(1)\n  %f = f32[] parameter(2)\n"
        "  %z = s32[] parameter(3)\n  %q = pred[] parameter(4)\n  %t = f32[9,100]{1,0:T(8,128)} parameter(5)\n"
    )
    assert program(f"{given}  ROOT %s = {line}").tensors


@pytest.mark.parametrize("how", ["fusion(%p), kind=kLoop, calls=%fused", "call(%p), to_apply=%fused"])
def test_operands_that_do_not_fit_what_is_called(how: str) -> None:
    with pytest.raises(InputError, match="%s: found operands of other sizes than the parameters of %fused"):
        program(f"  %p = f32[255]{{0}} parameter(0)\n  ROOT %s = {V} {how}")


@pytest.mark.parametrize("field", ["D(D,C)", "#(u32)", "P(f32[8])"])
def test_layouts_that_are_not_modelled(field: str) -> None:
    with pytest.raises(InputError, match=r"line 3: .*found layout field"):
        parse_module(f"HloModule m\nENTRY %e {{\n  %p = f32[8]{{0:{field}}} parameter(0)\n}}\n")


def test_warnings_reach_results_in_groups(tmp_path: Path) -> None:
    calls = "".join(f'  %s{number} = {V} custom-call(%p), custom_call_target="mine"\n' for number in range(50))
    path = tmp_path / "calls.hlo.gz"
    path.write_bytes(gzip.compress(module(f"  %p = {V} parameter(0)\n{calls}  ROOT %r = {V} negate(%p)").encode()))
    (warning,) = open_input(path, ReadOptions(target="order")).warnings
    assert warning.startswith("instruction s0 and 49 more: custom call of 'mine': ")


def test_module_that_says_nothing_new_has_no_warnings(recwarn: pytest.WarningsRecorder) -> None:
    found = program(f"  %p = {V} parameter(0)\n  ROOT %r = {V} fusion(%p), kind=kLoop, calls=%fused")
    assert msgspec.structs.asdict(found)["notes"] == ()
    assert not recwarn


def test_attributes_that_nothing_here_knows_are_named() -> None:
    known = '  %p = f32[] parameter(0), metadata={op_name="a, b=c"}'
    text = module(
        f"{known}\n  ROOT %n = f32[] negate(%p), fused_region=%sum", header=", is_scheduled=true, buffer_donor={ (0, {}) }"
    )
    with pytest.warns(UnmodelledWarning) as warned:
        program_from_module(parse_module(text))
    told = sorted(str(each.message).partition(" is not known")[0] for each in warned)
    assert told == ["instruction n: the attribute 'fused_region'", "the module: the attribute 'buffer_donor'"]
