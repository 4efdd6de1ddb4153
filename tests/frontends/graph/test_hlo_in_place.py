"""Orders of HLO programs whose fusions, loops and updates take the place of operands: what is counted, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

import stowplan
from stowplan import files
from stowplan.certificates.checker import check_parsed
from stowplan.certificates.checker.reading import UnprovenError, digest
from stowplan.certificates.maker import certify
from stowplan.models.operator_order.plan import Plan
from stowplan.models.operator_order.problem import Problem
from stowplan.models.operator_order.verify import verify

V = "f32[1024]{0}"
ONE = 4096


def read(path: Path, body: str, *, fused: str = "", header: str = "", target: str = "order", **options: str) -> Problem:
    """Problem of a module with this entry computation; ``fused`` stands before it."""
    file = path / "m.hlo"
    file.write_text(f"HloModule m, is_scheduled=true{header}\n\n{fused}\n\nENTRY main {{\n{lines(body)}\n}}\n")
    problem: Problem = stowplan.read(file, target, **options)
    return problem


def lines(text: str) -> str:
    return "\n".join(f"  {line.strip()}" for line in text.strip().splitlines())


def computation(name: str, text: str) -> str:
    return f"{name} {{\n{lines(text)}\n}}\n"


def pairs(problem: Problem) -> set[tuple[str, str]]:
    return {(problem.tensors[one].id, problem.tensors[other].id) for op in problem.ops for one, other in op.in_place}


SUBTRACT = computation(
    "step",
    f"""w = {V} parameter(0)
    g = {V} parameter(1)
    c = f32[] constant(0.1)
    cb = {V} broadcast(c), dimensions={{}}
    m = {V} multiply(g, cb)
    ROOT r = {V} subtract(w, m)""",
)
STEP = f"""w = {V} parameter(0)
    g = {V} parameter(1)
    ROOT w2 = {V} fusion(w, g), kind=kLoop, calls=step"""
DONATED = ", input_output_alias={ {}: (0, {}, must-alias) }"


def test_a_fusion_is_written_over_a_donated_parameter(tmp_path: Path) -> None:
    problem = read(tmp_path, STEP, fused=SUBTRACT, header=DONATED)
    assert pairs(problem) == {("w", "w2")}
    result = stowplan.solve(problem)
    assert (result.status, result.objective) == ("optimal", 2 * ONE)
    assert "1 of 1 operators may write a result over an operand that nobody needs afterwards" in result.summary()


def test_what_the_caller_keeps_is_not_overwritten(tmp_path: Path) -> None:
    problem = read(tmp_path, STEP, fused=SUBTRACT)
    result = stowplan.solve(problem)
    assert (pairs(problem), result.status, result.objective) == (set(), "optimal", 3 * ONE)
    assert "no operator may write a result over an operand" in result.summary()


def test_the_donated_one_of_two_operands_is_overwritten(tmp_path: Path) -> None:
    header = ", input_output_alias={ {}: (1, {}, may-alias) }"
    assert pairs(read(tmp_path, STEP, fused=SUBTRACT, header=header)) == {("g", "w2")}


def test_users_may_ask_for_results_with_bytes_of_their_own(tmp_path: Path) -> None:
    assert pairs(read(tmp_path, STEP, fused=SUBTRACT, header=DONATED, in_place="none")) == set()
    # The target arena has the option, too, and results of their own unless it is given.
    for in_place, buffers in (("none", 3), ("elementwise", 2)):
        packing = read(tmp_path, STEP, fused=SUBTRACT, header=DONATED, target="arena", in_place=in_place)
        assert len(packing.buffers) == buffers  # type: ignore[attr-defined]


def test_the_operand_that_nobody_reads_later_is_overwritten(tmp_path: Path) -> None:
    problem = read(
        tmp_path,
        f"""x = {V} parameter(0)
        a = {V} reverse(x), dimensions={{0}}
        b = {V} reverse(a), dimensions={{0}}
        c = {V} fusion(a, b), kind=kLoop, calls=step
        ROOT d = {V} fusion(a, c), kind=kLoop, calls=step""",
        fused=SUBTRACT,
    )
    assert [pair for pair in pairs(problem) if pair[1] == "c"] == [("b", "c")]
    result = stowplan.solve(problem)
    assert result.objective == 3 * ONE


LATER = f"""x = {V} parameter(0)
    a = {V} reverse(x), dimensions={{0}}
    b = {V} fusion(a, x), kind=kLoop, calls=step
    ROOT out = {V} concatenate(a, b), dimensions={{0}}"""


def test_a_plan_that_overwrites_what_is_read_later_is_refused(tmp_path: Path) -> None:
    """The pair is there, but the operand is read once more, so that both are live."""
    text = LATER.replace(f"ROOT out = {V}", "ROOT out = f32[2048]{0}")
    problem = read(tmp_path, text, fused=SUBTRACT)
    assert ("a", "b") in pairs(problem)
    result = stowplan.solve(problem)
    assert result.plan is not None
    assert not verify(problem, result.plan).violations
    number = {tensor.id: at for at, tensor in enumerate(problem.tensors)}
    offsets = list(result.plan.offsets)
    offsets[number["b"]] = offsets[number["a"]]
    mutant: Plan = msgspec.structs.replace(result.plan, offsets=tuple(offsets))
    assert "overlap" in {violation.code for violation in verify(problem, mutant).violations}


def test_a_plan_or_proof_that_counts_on_a_place_is_refused_without_the_pair(tmp_path: Path) -> None:
    problem = read(tmp_path, STEP, fused=SUBTRACT, header=DONATED)
    apart = read(tmp_path, STEP, fused=SUBTRACT, header=DONATED, in_place="none")
    plan = stowplan.solve(problem).plan
    assert plan is not None
    moved = msgspec.structs.replace(plan, problem=apart.digest)
    assert {violation.code for violation in verify(apart, moved).violations} == {"overlap", "wrong_objective"}
    proof = json.loads(files.encode(certify(apart)))
    assert check_parsed(json.loads(files.encode(apart)), proof).shown == 3 * ONE
    rules = json.loads(files.encode(problem))
    with pytest.raises(UnprovenError, match="0 does not use tensor 0"):
        check_parsed(rules, proof | {"problem": digest(rules)})


def test_an_operand_that_is_also_read_elsewhere_is_not_overwritten(tmp_path: Path) -> None:
    """The same bytes are two operands of the fusion, one of which it reads backwards."""
    fused = computation(
        "twice", f"p = {V} parameter(0)\nq = {V} parameter(1)\nr = {V} reverse(q), dimensions={{0}}\nROOT s = {V} add(p, r)"
    )
    body = f"""x = {V} parameter(0)
        y = {V} negate(x)
        same = {V} bitcast(y)
        ROOT z = {V} fusion(y, OTHER), kind=kLoop, calls=twice"""
    assert pairs(read(tmp_path, body.replace("OTHER", "same"), fused=fused)) == set()
    assert pairs(read(tmp_path, body.replace("OTHER", "x"), fused=fused)) == {("y", "z")}


def test_each_result_of_a_fusion_takes_the_place_of_another_operand(tmp_path: Path) -> None:
    fused = computation(
        "both",
        f"""p = {V} parameter(0)
        q = {V} parameter(1)
        one = {V} add(p, q)
        other = {V} subtract(p, q)
        ROOT t = ({V}, {V}) tuple(one, other)""",
    )
    body = f"""p = {V} parameter(0)
        q = {V} parameter(1)
        ROOT r = ({V}, {V}) fusion(p, q), kind=kLoop, calls=both"""
    header = ", input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }"
    problem = read(tmp_path, body, fused=fused, header=header)
    assert {one for one, _ in pairs(problem)} == {"p", "q"}
    assert {other for _, other in pairs(problem)} == {"r{0}", "r{1}"}
    assert stowplan.solve(problem).objective == 2 * ONE


LESS = computation(
    "less",
    f"""c = (s32[], {V}, {V}) parameter(0)
    i = s32[] get-tuple-element(c), index=0
    n = s32[] constant(4)
    ROOT r = pred[] compare(i, n), direction=LT""",
)
LOOP = f"""x = {V} parameter(0)
    y = {V} parameter(1)
    zero = s32[] constant(0)
    start = {V} negate(x)
    c = (s32[], {V}, {V}) tuple(zero, start, y)
    loop = (s32[], {V}, {V}) while(c), condition=less, body=body
    ROOT out = {V} get-tuple-element(loop), index=1"""


def loop_of(path: Path, body: str, root: str = "w", rest: str = "") -> Problem:
    text = f"""c = (s32[], {V}, {V}) parameter(0)
    i = s32[] get-tuple-element(c), index=0
    v = {V} get-tuple-element(c), index=1
    u = {V} get-tuple-element(c), index=2
    one = s32[] constant(1)
    next = s32[] add(i, one)
    {body}
    ROOT r = (s32[], {V}, {V}) tuple(next, {root}, u)"""
    return read(path, LOOP, fused=SUBTRACT + rest + computation("body", text) + LESS)


def scratch(problem: Problem) -> int:
    return sum(tensor.size for tensor in problem.tensors if tensor.id == "loop.scratch")


def test_what_a_loop_passes_on_untouched_is_no_other_tensor(tmp_path: Path) -> None:
    problem = loop_of(tmp_path, f"w = {V} fusion(v, u), kind=kLoop, calls=step")
    assert "loop{2}" not in {tensor.id for tensor in problem.tensors}
    assert pairs(problem) == {("start", "loop{1}")}
    assert scratch(problem) < 16
    result = stowplan.solve(problem)
    # x and y, which the caller keeps, and what the loop works on.
    assert result.objective is not None
    assert 3 * ONE <= result.objective < 3 * ONE + 16


def test_a_fusion_in_a_loop_takes_the_place_of_what_it_replaces(tmp_path: Path) -> None:
    """Not that of the other operand, which would have to be copied back; that one is beside it."""
    problem = loop_of(tmp_path, f"t = {V} reverse(v), dimensions={{0}}\nw = {V} fusion(v, t), kind=kLoop, calls=step")
    assert ONE <= scratch(problem) < ONE + 16


def test_what_is_written_while_the_old_value_is_needed_is_beside_it(tmp_path: Path) -> None:
    """``t`` becomes the next value, but is written before the last reader of this one: both are there."""
    rest = computation(
        "spread",
        f"t = {V} parameter(0)\ns = f32[1]{{0}} parameter(1)\ne = f32[] reshape(s)\n"
        f"b = {V} broadcast(e), dimensions={{}}\nROOT r = {V} add(t, b)",
    )
    first = f"t = {V} reverse(v), dimensions={{0}}"
    second = "s = f32[1]{0} slice(v), slice={[0:1]}"
    last = f"w = {V} fusion(t, s), kind=kLoop, calls=spread"
    assert scratch(loop_of(tmp_path, f"{first}\n{second}\n{last}", rest=rest)) >= ONE
    assert scratch(loop_of(tmp_path, f"{second}\n{first}\n{last}", rest=rest)) >= ONE


def test_a_value_that_a_loop_carries_twice_is_copied(tmp_path: Path) -> None:
    body = LOOP.replace("tuple(zero, start, y)", "tuple(zero, start, start)")
    text = f"""c = (s32[], {V}, {V}) parameter(0)
    i = s32[] get-tuple-element(c), index=0
    v = {V} get-tuple-element(c), index=1
    u = {V} get-tuple-element(c), index=2
    w = {V} fusion(v, u), kind=kLoop, calls=step
    ROOT r = (s32[], {V}, {V}) tuple(i, w, u)"""
    problem = read(tmp_path, body, fused=SUBTRACT + computation("body", text) + LESS)
    assert pairs(problem) == set()


def test_a_call_passes_its_operands_on(tmp_path: Path) -> None:
    called = computation("both", f"p = {V} parameter(0)\nn = {V} negate(p)\nROOT t = ({V}, {V}) tuple(n, p)")
    problem = read(tmp_path, f"x = {V} parameter(0)\nROOT y = ({V}, {V}) call(x), to_apply=both", fused=called)
    assert [tensor.id for tensor in problem.tensors] == ["x", "y{0}"]
