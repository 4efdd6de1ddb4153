"""Programs from small hand-written modules: steps, shared storage, loops, traffic."""

from __future__ import annotations

from typing import Any

import pytest

from stowplan.errors import InputError
from stowplan.frontends.hlo import parse_module, program_from_module, read_program
from stowplan.hardware.program import Program
from tests.paths import DATA

DATA = DATA / "hlo"


def uses(program: Program, step: str) -> dict[str, tuple[int | None, int | None]]:
    """Bytes read and written of each tensor of a step, by tensor name."""
    found: dict[str, tuple[int | None, int | None]] = {}
    for use in program.steps[program.step_index[step]].uses:
        name = program.tensors[use.tensor].name
        read, written = found.get(name, (None, None))
        found[name] = (read, use.bytes) if use.is_output else (use.bytes, written)
    return found


def entry(body: str, *, before: str = "", header: str = "") -> Program:
    """Program of an entry computation given as its instructions."""
    return program_from_module(
        parse_module(f"HloModule m, is_scheduled=true{header}\n\n{before}\nENTRY %main () -> f32[] {{\n{body}\n}}\n")
    )


def groups(program: Program) -> set[tuple[str, ...]]:
    return {tensor.members for tensor in program.tensors if tensor.members}


class TestLoop:
    """The steps of a loop stand in line; what it carries is one tensor, what it only reads keeps its own."""

    program = read_program(DATA / "loop.hlo.txt")

    def test_steps_in_order_with_weights(self) -> None:
        assert [(step.name, step.weight) for step in self.program.steps] == [
            ("start", 1), ("scale", 1), ("first", 1), ("empty", 1), ("less", 4), ("sum", 4), ("rows.1", 4), ("next", 4),
        ]  # fmt: skip
        (loop,) = self.program.loops
        assert (loop.start, loop.end, loop.trip_count, loop.name, loop.trip_count_known) == (4, 8, 4, "loop", True)

    def test_carried_values_share_storage(self) -> None:
        assert groups(self.program) == {("start", "next"), ("first", "sum"), ("empty", "rows.1")}

    def test_invariant_is_read_from_outside(self) -> None:
        scale = self.program.value_tensor["scale"]
        assert {self.program.value_tensor[name] for name in ("state{3}", "state.2{3}", "bias", "state.3{3}", "loop{3}")} == {
            scale
        }
        writers = [step.name for step in self.program.steps for use in step.uses if use.tensor == scale and use.is_output]
        assert writers == ["scale"]

    def test_inputs_and_outputs(self) -> None:
        assert {tensor.name for tensor in self.program.tensors if tensor.is_input} == {"x", "zero", "one", "limit"}
        assert [tensor.name for tensor in self.program.tensors if tensor.is_output] == ["empty"]

    def test_update_moves_only_the_row(self) -> None:
        assert uses(self.program, "rows.1") == {"empty": (0, 4096), "first": (4096, None), "start": (512, None)}
        allocation = self.program.steps[self.program.step_index["empty"]]
        assert allocation.opcode == "AllocateBuffer"
        assert uses(self.program, "empty") == {"empty": (None, 0)}
        assert allocation.flops == allocation.elementwise == 0

    def test_name(self) -> None:
        assert self.program.name == "loop/counter"
        assert self.program.notes == ()


class TestUpdates:
    """In-place updates through nested fusions and tuples; a parameter the caller keeps is not overwritten."""

    program = read_program(DATA / "cache.hlo.txt")

    def test_donated_parameter_is_updated_in_place(self) -> None:
        cache = self.program.tensors[self.program.value_tensor["cache"]]
        assert cache.members == ("cache", "step{0}")
        assert cache.is_input
        assert cache.is_output
        # 128 bytes are sliced from the old content, 128 are written.
        assert uses(self.program, "step") == {
            "cache": (128, 128),
            "at": (4, None),
            "row": (128, None),
            "step{1}": (None, 128),
        }

    def test_kept_parameter_is_copied(self) -> None:
        assert uses(self.program, "copied")["kept"] == (8192, None)
        assert uses(self.program, "copied")["copied"] == (None, 8192)
        assert self.program.notes == ("1 updates are copies, not in place: what they update is read later or kept",)

    def test_parameter_returned_directly(self) -> None:
        row = self.program.tensors[self.program.value_tensor["result{2}"]]
        assert row.is_input
        assert row.is_output


class TestDonation:
    """A parameter that an update reads for the last time, one read before the output is written, and one read after it."""

    body = """  old = f32[64]{0} parameter(0)
  early = f32[64]{0} parameter(1)
  late = f32[64]{0} parameter(2)
  kept = f32[64]{0} parameter(3)
  new = f32[64]{0} add(old, kept)
  first = f32[64]{0} negate(early)
  second = f32[64]{0} multiply(first, first)
  third = f32[64]{0} negate(first)
  sum = f32[64]{0} add(late, third)
  ROOT result = (f32[64]{0}, f32[64]{0}, f32[64]{0}, f32[64]{0}) tuple(new, second, third, sum)"""
    header = ", input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, must-alias), {2}: (2, {}, may-alias) }"

    def program(self, **options: Any) -> Program:
        text = f"HloModule m, is_scheduled=true{self.header}\n\nENTRY %main () -> f32[] {{\n{self.body}\n}}\n"
        return program_from_module(parse_module(text), **options)

    def test_free_is_the_default(self) -> None:
        assert self.program() == self.program(donation="free")
        assert groups(self.program()) == set()
        assert self.program().notes == ()

    def test_tied_pairs_are_one_tensor(self) -> None:
        program = self.program(donation="tied")
        assert groups(program) == {("old", "new"), ("early", "second")}
        for name in ("old", "early"):
            tensor = program.tensors[program.value_tensor[name]]
            assert tensor.is_input
            assert tensor.is_output
        # An update in place moves all of it, twice.
        assert uses(program, "new") == {"old": (256, 256), "kept": (256, None)}
        assert uses(program, "second") == {"early": (None, 256), "first": (256, None)}

    def test_what_is_read_after_its_output_is_written_stays_apart(self) -> None:
        program = self.program(donation="tied")
        assert program.value_tensor["late"] != program.value_tensor["third"]
        assert program.notes == ("1 donated parameters are needed while the output in their storage is: not tied to it",)


class TestBranches:
    program = read_program(DATA / "branches.hlo.txt")

    def test_branches_stand_one_after_the_other(self) -> None:
        assert [step.name for step in self.program.steps[:2]] == ["plus", "minus"]
        assert ("plus", "minus") in groups(self.program)
        assert self.program.notes == ("branches of chosen stand one after the other, each counted once",)

    def test_shared_body_is_named_after_its_loop(self) -> None:
        assert [step.name for step in self.program.steps[5:]] == [
            "loop.a/go", "loop.a/m.1", "loop.a/w.1/doubled", "loop.b/go", "loop.b/m.1", "loop.b/w.1/doubled",
        ]  # fmt: skip
        assert ("x.a", "loop.a/w.1/doubled", "loop.b/w.1/doubled") in groups(self.program)
        assert [(loop.start, loop.end, loop.trip_count) for loop in self.program.loops] == [(5, 8, 3), (8, 11, 3)]


def test_asynchronous_transfers() -> None:
    program = read_program(DATA / "transfers.hlo.txt")
    assert [(step.name, step.opcode) for step in program.steps] == [
        ("copy-start", "copy"), ("slice-start", "async-start"), ("copy-done", "copy-done"), ("slice-done", "async-done"),
        ("up", "negate"), ("down", "fusion"),
    ]  # fmt: skip
    # Their ends move nothing: they say how long operands and results keep their places.
    assert uses(program, "copy-done") == {"x": (0, None), "copy-start{0}": (0, 0)}
    assert uses(program, "copy-start") == {"x": (16384, None), "copy-start{0}": (None, 16384)}
    assert uses(program, "slice-start") == {"x": (4096, None), "slice-start{1}": (None, 4096)}
    assert program.value_tensor["copy-start{1}"] == program.value_tensor["x"]
    assert program.value_tensor["copy-done"] == program.value_tensor["copy-start{0}"]
    assert program.value_tensor["slice-done"] == program.value_tensor["slice-start{1}"]
    assert "copy-start{2}" not in program.value_tensor
    assert "token" not in program.value_tensor
    # The declared alias.
    assert ("slice-start{1}", "down") in groups(program)
    assert program.steps[4].cycles == 1234
    assert program.steps[5].cycles is None


def test_update_of_a_value_that_is_read_later_is_a_copy() -> None:
    body = """
  %z = s32[] constant(0)
  %x = f32[8] parameter(0)
  %a = f32[8] negate(%x)
  %row = f32[2] slice(%x), slice={[0:2]}
  %b = f32[8] dynamic-update-slice(%a, %row, %z)
  %c = f32[8] negate(%a)
  ROOT %d = f32[8] add(%b, %c)"""
    program = entry(body)
    assert groups(program) == set()
    assert program.notes == ("1 updates are copies, not in place: what they update is read later or kept",)
    assert uses(program, "b") == {"a": (32, None), "row": (8, None), "z": (4, None), "b": (None, 32)}
    assert uses(program, "row") == {"x": (8, None), "row": (None, 8)}
    # Without the later read it is in place.
    program = entry(body.replace("negate(%a)", "negate(%x)"))
    assert groups(program) == {("a", "b")}
    assert uses(program, "b") == {"a": (0, 8), "row": (8, None), "z": (4, None)}


def test_chain_of_updates_is_one_tensor() -> None:
    updates = "\n".join(f"  %u.{n + 1} = f32[8] dynamic-update-slice(%u.{n}, %row, %z)" for n in range(50))
    program = entry(
        f"  %z = s32[] constant(0)\n  %row = f32[2] parameter(0)\n  %u.0 = f32[8] broadcast(%z), dimensions={{}}\n{updates}\n"
        "  ROOT %r = f32[8] negate(%u.50)"
    )
    assert groups(program) == {tuple(f"u.{n}" for n in range(51))}


def test_no_alias_where_the_fusion_makes_the_buffer_itself() -> None:
    fused = """%f (v: f32[2]) -> f32[8] {
  %v = f32[2] parameter(0)
  %fresh = f32[8] custom-call(), custom_call_target="AllocateBuffer"
  %at = s32[] constant(0)
  ROOT %put = f32[8] dynamic-update-slice(%fresh, %v, %at)
}
"""
    program = entry("  %x = f32[2] parameter(0)\n  ROOT %y = f32[8] fusion(%x), kind=kLoop, calls=%f", before=fused)
    assert groups(program) == set()
    assert uses(program, "y") == {"x": (8, None), "y": (None, 32)}


def test_scatter_combines_in_place() -> None:
    region = (
        "%plus (p: f32[], q: f32[]) -> f32[] {\n"
        "  %p = f32[] parameter(0)\n  %q = f32[] parameter(1)\n  ROOT %s = f32[] add(%p, %q)\n}\n"
    )
    program = entry(
        "  %x = f32[64,4] parameter(0)\n  %at = s32[3,1] parameter(1)\n  %rows = f32[3,4] parameter(2)\n"
        "  %table = f32[64,4] negate(%x)\n"
        "  ROOT %t = f32[64,4] scatter(%table, %at, %rows), update_window_dims={1}, inserted_window_dims={0}, to_apply=%plus",
        before=region,
    )
    assert uses(program, "t") == {"table": (48, 48), "at": (12, None), "rows": (48, None)}
    assert program.steps[1].elementwise == 12


def test_several_slices_of_one_operand() -> None:
    fused = """%f (v: f32[100], w: f32[100]) -> f32[10] {
  %v = f32[100] parameter(0)
  %w = f32[100] parameter(1)
  %a = f32[10] slice(%v), slice={[0:10]}
  %b = f32[10] slice(%v), slice={[5:15]}
  %c = f32[10] slice(%w), slice={[0:10]}
  %d = f32[100] negate(%w)
  %e = f32[10] slice(%d), slice={[0:10]}
  %f.1 = f32[10] add(%a, %b)
  %f.2 = f32[10] add(%c, %e)
  ROOT %f.3 = f32[10] add(%f.1, %f.2)
}
"""
    program = entry(
        "  %x = f32[100] parameter(0)\n  %y = f32[100] parameter(1)\n  ROOT %z = f32[10] fusion(%x, %y), kind=kLoop, calls=%f",
        before=fused,
    )
    assert uses(program, "z") == {"x": (80, None), "y": (400, None), "z": (None, 40)}
    # One tensor as both operands: the bytes add up, but not to more than there are.
    program = entry(
        "  %x = f32[100] parameter(0)\n  ROOT %z = f32[10] fusion(%x, %x), kind=kLoop, calls=%f",
        before=fused,
    )
    assert uses(program, "z") == {"x": (400, None), "z": (None, 40)}


def test_values_without_readers_and_without_storage() -> None:
    program = entry(
        "  %x = f32[4] parameter(0)\n  %nothing = f32[0] slice(%x), slice={[0:0]}\n  %unread = f32[4] negate(%x)\n"
        "  %t = token[] after-all()\n  ROOT %y = f32[4] negate(%x)"
    )
    assert {tensor.name for tensor in program.tensors} == {"x", "unread", "y"}
    assert uses(program, "unread") == {"x": (16, None), "unread": (None, 16)}
    assert uses(program, "nothing") == {"x": (0, None)}


LOOP = """%cond (s: (s32[], s32[])) -> pred[] {{
  %s = (s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] get-tuple-element(%s), index=1
  %limit = s32[] constant({limit})
  ROOT %go = pred[] compare({compare}), direction={direction}
}}

%body (t: (s32[], s32[])) -> (s32[], s32[]) {{
  %t = (s32[], s32[]) parameter(0)
  %j = s32[] get-tuple-element(%t), index=0
  %k = s32[] get-tuple-element(%t), index=1
  %by = s32[] constant({step})
  %j.0 = s32[] copy(%j)
  %j.1 = s32[] {add}
  ROOT %u = (s32[], s32[]) tuple(%j.1, %k)
}}
"""


@pytest.mark.parametrize(
    ("change", "trips"),
    [
        ({}, 10),
        ({"direction": "LE"}, 11),
        ({"direction": "NE"}, 10),
        ({"step": 3}, 4),
        ({"step": 3, "direction": "NE"}, None),
        ({"start": 7}, 3),
        ({"start": 17}, 0),
        ({"compare": "%limit, %i", "direction": "GT"}, 10),
        ({"start": 20, "step": -4, "direction": "GT"}, 3),
        ({"start": 20, "step": -5, "direction": "GE"}, 3),
        ({"start": 20, "step": 5, "add": "subtract(%j.0, %by)", "direction": "GT"}, 2),
        ({"compare": "%i, %n", "invariant": 6}, 6),
        ({"direction": "EQ"}, None),
        ({"step": -1}, None),
        ({"add": "multiply(%j.0, %by)"}, None),
        ({"init": "parameter(0)"}, None),
        ({"note": ', backend_config={"known_trip_count":{"n":"77"}}'}, 77),
    ],
)
def test_trip_counts(change: dict[str, object], trips: int | None) -> None:
    fill: dict[str, object] = {"limit": 10, "compare": "%i, %limit", "direction": "LT", "step": 1, "add": "add(%j.0, %by)",
                               "start": 0, "invariant": 0, "note": ""} | change  # fmt: skip
    init = fill.get("init", f"constant({fill['start']})")
    program = entry(
        f"  %c = s32[] {init}\n  %d = s32[] constant({fill['invariant']})\n  %a = s32[] copy(%c)\n  %b = s32[] copy(%d)\n"
        "  %in = (s32[], s32[]) tuple(%a, %b)\n"
        f"  %w = (s32[], s32[]) while(%in), condition=%cond, body=%body{fill['note']}\n"
        "  ROOT %out = s32[] get-tuple-element(%w), index=0",
        before=LOOP.format(**fill),
    )
    (loop,) = program.loops
    assert loop.trip_count_known == (trips is not None)
    # A loop that never runs, or for an unknown time, counts once.
    assert loop.trip_count == max(1, trips or 1)
    assert {step.weight for step in program.steps[loop.start : loop.end]} == {loop.trip_count}
    assert bool(program.notes) == (trips is None)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("%x = f32[4] parameter(0)\nROOT %y = f32[4] get-tuple-element(%x), index=0", "found operand %x, expected a tuple"),
        ("%x = (f32[4]) parameter(0)\nROOT %y = f32[4] get-tuple-element(%x), index=1", "found index=1, expected one below 1"),
        ("%x = f32[4] parameter(0)\nROOT %y = (f32[4], f32[4]) tuple(%x)", "found 1 arrays, expected the 2 of its shape"),
        ("%x = f32[4] parameter(0)\nROOT %y = f32[4] fusion(%x, %x), calls=%f", "found 2 operands, expected the 1 of its"),
        ("%x = f32[4] parameter(0)\nROOT %y = f32[4] call(%x, %x), to_apply=%f", "found 2 operands, expected the 1 of %f"),
        ("%x = f32[4] parameter(0)\nROOT %y = f32[4] while(%x), condition=%p, body=%g", "found a body with 2 results"),
        ("%x = f32[4] parameter(0)\nROOT %y = f32[4] bitcast()", "found no operand"),
        ("%x = f32[4] parameter(0)\nROOT %y = f32[4] dynamic-update-slice(%x)", "found 1 operands, expected more than 1"),
        ("%x = f32[4] parameter(0)\nROOT %y = f32[4] copy-start(%x)", "expected a tuple of operands and results"),
        ("%x = f32[4] parameter(0)\nROOT %y = f32[4] copy-done(%x)", "expected the tuple of an asynchronous start"),
        (
            "%x = f32[4] parameter(0)\nROOT %y = f32[4] fusion(%x), calls=%f, output_to_operand_aliasing={{}: (3, {})}",
            "expected leaves of the result and of an operand",
        ),
        (
            "%x = f32[4] parameter(0)\nROOT %y = f32[4] fusion(%x), calls=%f, output_to_operand_aliasing={nonsense}",
            "found '{nonsense}', expected aliases",
        ),
        (
            "%x = f32[4] parameter(0)\n"
            'ROOT %y = f32[4] while(%x), condition=%p, body=%f, c={"known_trip_count":{"n":"2000000000"}}',
            "found steps that run 2000000000 times",
        ),
    ],
)
def test_what_does_not_fit_is_refused(body: str, message: str) -> None:
    computations = (
        "%f (v: f32[4]) -> f32[4] {\n  %v = f32[4] parameter(0)\n  ROOT %r = f32[4] negate(%v)\n}\n\n"
        "%p (v: f32[4]) -> pred[] {\n  %v = f32[4] parameter(0)\n  ROOT %r = pred[] constant(true)\n}\n\n"
        "%g (v: f32[4]) -> (f32[4], f32[4]) {\n  %v = f32[4] parameter(0)\n  ROOT %r = (f32[4], f32[4]) tuple(%v, %v)\n}\n"
    )
    with pytest.raises(InputError) as caught:
        entry(body, before=computations)
    assert message in str(caught.value)
    assert caught.value.place is not None
    assert caught.value.place.startswith("line ")
