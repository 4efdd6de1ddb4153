"""What an asynchronous operation reads and writes is alive until its end: random programs against a count of intervals.

The count is made from what the generator wrote, line by line, and shares no code with the package. A value is alive from the
line that makes it to the last line that needs it; the end of an asynchronous operation needs all that its start does.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from stowplan.frontends.graph.hlo import read_hlo
from stowplan.frontends.hlo import parse_module, program_from_module
from stowplan.frontends.options import ReadOptions
from stowplan.frontends.read import open_input
from stowplan.hardware.program import Program
from stowplan.models.operator_order.plan import Plan
from stowplan.models.operator_order.problem import of_graph
from stowplan.models.operator_order.verify import verify
from stowplan.models.packing.plan import Plan as PackingPlan
from stowplan.models.packing.verify import verify as verify_packing

pytestmark = pytest.mark.filterwarnings("ignore::stowplan.log.UnmodelledWarning")

SUM = "%sum () -> f32[] {\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n  ROOT %c = f32[] add(%a, %b)\n}\n"
GROUPS = ", channel_id=1, replica_groups={{0,1}}, dimensions={0}"

#: By opcode: attributes, and elements of the result for those of the operand; None for any number.
KINDS = {
    "custom-call": (', custom_call_target="send_it"', None),
    "copy": ("", (1, 1)),
    "collective-permute": (", channel_id=1, source_target_pairs={{0,1},{1,0}}", (1, 1)),
    "all-to-all": (", dimensions={0}", (1, 1)),
    "all-gather": (GROUPS, (2, 1)),
    "reduce-scatter": (GROUPS + ", to_apply=%sum", (1, 2)),
    "slice": (", slice={[0:%d]}", (1, 4)),
}
#: Opcodes whose start has a tuple of its own, not the one of ``async-start``.
TUPLES = {"copy": "({1}, {0}, u32[])", "collective-permute": "({0}, {1}, u32[], u32[])", "all-gather": "({0}, {1})"}


@dataclass
class Line:
    """One operation: the values that it makes and needs, and what it needs in memory for itself, in elements."""

    makes: list[str]
    needs: list[str]
    own: int = 0
    body: Writer | None = None


@dataclass
class Writer:
    """Writes one computation, in both spellings at once."""

    rng: random.Random
    name: str
    elements: dict[str, int] = field(default_factory=dict)
    """Of every value."""
    lines: list[Line] = field(default_factory=list)
    short: list[str] = field(default_factory=list)
    full: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    """Computations that the fully spelled text has above this one."""
    loops: list[str] = field(default_factory=list)
    ready: list[str] = field(default_factory=list)
    """Values that may be read."""
    open: list[tuple[str, str, str, str, list[str], str]] = field(default_factory=list)
    """Starts without an end: names in both spellings, opcode, shape of the result, what they need, the result."""
    given: list[str] = field(default_factory=list)

    def text(self, short: str, full: str | None = None) -> None:
        self.short.append(f"  {short}")
        self.full.append(f"  {short if full is None else full}")

    def new(self, elements: int) -> str:
        name = f"{self.name}{len(self.elements)}"
        self.elements[name] = elements
        return name

    def shape(self, name: str) -> str:
        return f"f32[{self.elements[name]}]{{0}}"

    def parameter(self, elements: int) -> None:
        name = self.new(elements)
        self.text(f"%{name} = {self.shape(name)} parameter({len(self.given)})")
        self.given.append(name)
        self.ready.append(name)

    def compute(self, elements: int, needs: list[str] | None = None, *, root: bool = False) -> str:
        needs = self.rng.sample(self.ready, min(len(self.ready), self.rng.randint(1, 2))) if needs is None else needs
        name = self.new(elements)
        operands = ", ".join(f"%{each}" for each in needs)
        self.text(f'{"ROOT " * root}%{name} = {self.shape(name)} custom-call({operands}), custom_call_target="f"')
        self.lines.append(Line([name], needs))
        self.ready.append(name)
        return name

    def start(self) -> None:
        opcode = self.rng.choice([*KINDS])
        attributes, ratio = KINDS[opcode]
        operands = self.rng.sample(self.ready, 2 if opcode == "custom-call" and len(self.ready) > 1 else 1)
        given = self.elements[operands[0]]
        result = self.new(8 * self.rng.randint(1, 9) if ratio is None else given * ratio[0] // ratio[1])
        attributes = attributes % self.elements[result] if "%d" in attributes else attributes
        names = ", ".join(f"%{each}" for each in operands)
        inputs = [self.shape(each) for each in operands]
        tuple_full = f"(({', '.join(inputs)}), {self.shape(result)}, u32[])"
        tuple_short = TUPLES[opcode].format(inputs[0], self.shape(result)) if opcode in TUPLES else tuple_full
        inner = [f"  %i{at}.{result} = {shape} parameter({at})" for at, shape in enumerate(inputs)]
        inner_names = ", ".join(f"%i{at}.{result}" for at in range(len(inputs)))
        inner += [f"  ROOT %o.{result} = {self.shape(result)} {opcode}({inner_names}){attributes}"]
        self.before.append(f"%w.{result} () -> f32[] {{\n" + "\n".join(inner) + "\n}\n")
        self.text(
            f"%s.{result} = {tuple_short} {opcode}-start({names}){attributes}",
            f"%s.{result} = {tuple_full} async-start({names}), calls=%w.{result}",
        )
        self.lines.append(Line([result], operands))
        at = f"s.{result}"
        if opcode not in TUPLES and self.rng.random() < 0.4:
            self.text(f"%u.{result} = {tuple_short} {opcode}-update(%{at})", f"%u.{result} = {tuple_full} async-update(%{at})")
            at = f"u.{result}"
        if self.rng.random() < 0.4:
            other = self.rng.choice(self.ready)
            for texts, shape in ((self.short, tuple_short), (self.full, tuple_full)):
                texts.append(f"  %t.{result} = ({self.shape(other)}, {shape}) tuple(%{other}, %{at})")
                texts.append(f"  %g.{result} = {shape} get-tuple-element(%t.{result}), index=1")
            at = f"g.{result}"
        self.open.append((at, opcode, tuple_short, tuple_full, operands, result))

    def end(self) -> None:
        at, opcode, _, _, operands, result = self.open.pop(self.rng.randrange(len(self.open)))
        shape = self.shape(result)
        self.text(f"%d.{result} = {shape} {opcode}-done(%{at})", f"%d.{result} = {shape} async-done(%{at})")
        # What follows reads the end of the operation by its own name.
        self.lines.append(Line([], [*operands, result]))
        done = f"d.{result}"
        self.elements[done] = self.elements[result]
        self.same[done] = result
        self.ready.append(done)

    same: dict[str, str] = field(default_factory=dict)
    """Value behind a name."""

    def loop(self) -> None:
        """A loop over one array, with operations of its own in its body, all ended in it."""
        carried = self.rng.choice(self.ready)
        result = self.new(self.elements[carried])
        body = Writer(self.rng, f"{result}b")
        body.parameter(self.elements[carried])
        first = body.compute(8 * self.rng.randint(1, 9))
        body.fill(self.rng.randint(2, 5), depth=0)
        body.compute(self.elements[carried], [body.rng.choice([first, *body.ready[2:]])], root=True)
        shape = self.shape(result)
        lines = f"  %p.{result} = {shape} parameter(0)\n  ROOT %k.{result} = pred[] constant(true)"
        condition = f"%c.{result} () -> pred[] {{\n{lines}\n}}\n"
        for texts, mine in ((self.loops, body.short), (self.before, body.full)):
            above = body.loops if texts is self.loops else body.before
            texts += [*above, condition, f"%b.{result} (p: f32[8]) -> f32[8] {{\n" + "\n".join(mine) + "\n}\n"]
        self.text(f"%{result} = {shape} while(%{carried}), condition=%c.{result}, body=%b.{result}")
        outside = {body.given[0], *body.lines[-1].makes}
        self.lines.append(Line([result], [carried], max(loads(body, outside), default=0), body))
        self.ready.append(result)

    def fill(self, operations: int, depth: int) -> None:
        for _ in range(operations):
            kind = self.rng.choice(["compute", "start", "start", "end", "loop"])
            if kind == "start":
                self.start()
            elif kind == "end" and self.open:
                self.end()
            elif kind == "loop" and depth:
                self.loop()
            else:
                self.compute(8 * self.rng.randint(1, 9))
        while self.open:
            self.end()


def loads(writer: Writer, outside: set[str], *, in_place: bool = False) -> list[int]:
    """Elements that are alive at each line, without those of what is held outside.

    ``in_place``: the result of a loop takes the place of what it carries, where nobody else needs that later.
    """
    first = dict.fromkeys(writer.given, 0)
    last: dict[str, int] = {}
    for at, line in enumerate(writer.lines):
        for name in line.makes:
            first[name] = last[name] = at
        for name in line.needs:
            last[writer.same.get(name, name)] = at
    taken = [
        writer.elements[line.needs[0]]
        if in_place
        and line.body
        and last[before := writer.same.get(line.needs[0], line.needs[0])] == at
        and before not in outside
        else 0
        for at, line in enumerate(writer.lines)
    ]
    return [
        line.own
        - taken[at]
        + sum(writer.elements[name] for name in first if first[name] <= at <= last.get(name, -1) and name not in outside)
        for at, line in enumerate(writer.lines)
    ]


def random_program(seed: int) -> tuple[Writer, str, str]:
    """What was written, and its text in XLA's short spelling and with every asynchronous computation spelled out."""
    rng = random.Random(f"asynchronous {seed}")
    writer = Writer(rng, "v")
    for _ in range(rng.randint(1, 3)):
        writer.parameter(8 * rng.randint(1, 9))
    writer.fill(rng.randint(4, 14), depth=1)
    writer.compute(8, root=True)
    head = "HloModule m, is_scheduled=true\n\n" + SUM
    texts = [
        head + "\n".join(above) + "ENTRY %main () -> f32[] {\n" + "\n".join(lines) + "\n}\n"
        for above, lines in ((writer.loops, writer.short), (writer.before, writer.full))
    ]
    return writer, texts[0], texts[1]


def peak_bytes(writer: Writer, *, in_place: bool) -> int:
    """Most bytes at a line of the entry: what the caller gave stays to the end."""
    given = sum(writer.elements[name] for name in writer.given)
    return 4 * (given + max(loads(writer, {*writer.given}, in_place=in_place)))


@pytest.mark.parametrize("part", range(4))
def test_orders_and_arenas_agree_with_a_count_of_intervals(part: int, tmp_path: Path) -> None:
    asynchronous = 0
    for seed in range(25 * part, 25 * (part + 1)):
        writer, *texts = random_program(seed)
        expected, with_places = (peak_bytes(writer, in_place=in_place) for in_place in (False, True))
        for number, text in enumerate(texts):
            path = tmp_path / f"{seed}.{number}.hlo"
            path.write_text(text)
            order = of_graph(read_hlo(path))
            given = Plan(problem=order.digest, objective=0, order=tuple(range(len(order.ops))), offsets=(), arena=0)
            assert verify(order, given).objective == with_places, (seed, text)
            arena = open_input(path, ReadOptions(target="arena")).problem
            moments = {buffer.lower for buffer in arena.buffers}
            peak = max(sum(one.size for one in arena.buffers if one.lower <= at < one.upper) for at in moments)
            assert peak == expected, (seed, text)
        asynchronous += "-start" in texts[0]
    assert asynchronous > 20


def expanded(writer: Writer) -> Writer:
    """The lines with those of loops in line: what a loop carries is one value."""
    flat = Writer(writer.rng, writer.name, given=writer.given)
    flat.elements, flat.same = dict(writer.elements), dict(writer.same)
    for line in writer.lines:
        if line.body is None:
            flat.lines.append(line)
            continue
        body = expanded(line.body)
        flat.elements |= body.elements
        carried = flat.same.get(line.needs[0], line.needs[0])
        flat.same |= body.same | {body.given[0]: carried, body.lines[-1].makes[0]: carried, line.makes[0]: carried}
        flat.lines += [*body.lines[:-1], Line([], [*body.lines[-1].needs, carried])]
    return flat


def live_bytes(program: Program) -> int:
    """Most bytes between first and last uses."""
    span: dict[int, tuple[int, int]] = {}
    for at, step in enumerate(program.steps):
        for use in step.uses:
            span[use.tensor] = span.get(use.tensor, (at, at))[0], at
    return max(
        sum(program.tensors[tensor].size for tensor, (first, last) in span.items() if first <= at <= last)
        for at in range(len(program.steps))
    )


@pytest.mark.parametrize("part", range(4))
def test_compiled_programs_agree_with_a_count_of_intervals(part: int) -> None:
    for seed in range(25 * part, 25 * (part + 1)):
        writer, *texts = random_program(seed)
        flat = expanded(writer)
        # A parameter takes fast memory from its first use on.
        flat.lines = [Line([name for name in line.makes if name not in flat.same], line.needs) for line in flat.lines]
        needed = [name for line in flat.lines for name in (flat.same.get(need, need) for need in line.needs)]
        first = {name: at for at, line in reversed([*enumerate(flat.lines)]) for name in _touched(flat, line)}
        last = {name: at for at, line in enumerate(flat.lines) for name in _touched(flat, line)}
        assert first.keys() >= {*needed}
        expected = max(
            4 * sum(flat.elements[name] for name in first if first[name] <= at <= last[name]) for at in range(len(flat.lines))
        )
        programs = [program_from_module(parse_module(text)) for text in texts]
        for program, text in zip(programs, texts, strict=True):
            assert live_bytes(program) == expected, (seed, text)
        one, two = (
            [(step.elementwise, step.weight, step.uses) for step in program.steps] + [tensor.size for tensor in program.tensors]
            for program in programs
        )
        assert one == two
        assert programs[0].in_flight == programs[1].in_flight


def _touched(writer: Writer, line: Line) -> set[str]:
    return {writer.same.get(name, name) for name in (*line.makes, *line.needs)}


def module(body: str, before: str = "") -> str:
    return f"HloModule m, is_scheduled=true\n\n{SUM}{before}ENTRY %main () -> f32[] {{\n{body}\n}}\n"


def order_peak(text: str, folder: Path) -> int | None:
    path = folder / "m.hlo"
    path.write_text(text)
    order = of_graph(read_hlo(path))
    given = Plan(problem=order.digest, objective=0, order=tuple(range(len(order.ops))), offsets=(), arena=0)
    return verify(order, given).objective


@pytest.mark.parametrize("opcode", [*KINDS])
def test_the_synchronous_form_is_the_control(opcode: str, tmp_path: Path) -> None:
    """Without anything in between the two are one; what runs in between only adds to it."""
    attributes, ratio = KINDS[opcode]
    more, less = ratio or (1, 1)
    result = f"f32[{64 * more // less}]{{0}}"
    attributes = attributes.replace("%d", "16")
    shape = TUPLES.get(opcode, "(({0}), {1}, u32[])").format("f32[64]{0}", result)
    head = '  %x = f32[64]{0} parameter(0)\n  %a = f32[64]{0} custom-call(%x), custom_call_target="f"\n'
    start, done = f"  %s = {shape} {opcode}-start(%a){attributes}\n", f"  %d = {result} {opcode}-done(%s)\n"
    between = '  %b = f32[640]{0} custom-call(%x), custom_call_target="f"\n'
    tail = '  ROOT %r = f32[8]{0} custom-call(%d), custom_call_target="f"'
    together = module(f"{head}  %d = {result} {opcode}(%a){attributes}\n{between}{tail}")
    adjacent, apart = module(head + start + done + between + tail), module(head + start + between + done + tail)
    programs = [program_from_module(parse_module(text)) for text in (together, adjacent, apart)]
    assert programs[0].in_flight == programs[1].in_flight == ()
    assert [step.uses for step in programs[0].steps] == [step.uses for step in programs[1].steps]
    peaks = [
        (live_bytes(program), order_peak(text, tmp_path))
        for program, text in zip(programs, (together, adjacent, apart), strict=True)
    ]
    assert peaks[0] == peaks[1]
    # The operand is alive beside what is computed in between.
    assert [after - before for after, before in zip(peaks[2], peaks[1], strict=True)] == [256, 256]  # type: ignore[operator]
    assert len(programs[2].in_flight) == 2


V = "f32[64]{0}"


@pytest.mark.parametrize("is_read_later", [False, True])
def test_an_all_reduce_takes_the_place_of_an_operand_that_nobody_else_reads(is_read_later: bool, tmp_path: Path) -> None:
    reader = f'  %e = {V} custom-call(%{"a" if is_read_later else "x"}), custom_call_target="f"\n'
    text = module(
        f'  %x = {V} parameter(0)\n  %a = {V} custom-call(%x), custom_call_target="f"\n'
        f"  %s = {V} all-reduce-start(%a), to_apply=%sum\n{reader}"
        f'  %b = {V} custom-call(%e), custom_call_target="f"\n  %d = {V} all-reduce-done(%s)\n'
        f'  ROOT %r = {V} custom-call(%d, %b), custom_call_target="f"'
    )
    found = program_from_module(parse_module(text))
    place = {found.value_tensor[name] for name in ("a", "s")}
    assert len(place) == 1 + is_read_later
    assert {held.tensor for held in found.in_flight} == place
    # x, s, e, b; and a where its bytes are still being read.
    assert order_peak(text, tmp_path) == 4 * 64 * (4 + is_read_later)
    assert max(peak_of_arena(text, tmp_path)) == 4 * 64 * 5


def test_plans_over_bytes_that_are_being_sent_are_refused(tmp_path: Path) -> None:
    """The problems say by themselves how long the operand is needed: the verifiers know nothing of HLO."""
    path = tmp_path / "sent.hlo"
    path.write_text(
        module(
            f'  %x = {V} parameter(0)\n  %a = {V} custom-call(%x), custom_call_target="f"\n'
            f"  %s = ({V}, {V}) collective-permute-start(%a), channel_id=1, source_target_pairs={{{{0,1}}}}\n"
            f'  %b = {V} custom-call(%x), custom_call_target="f"\n  %d = {V} collective-permute-done(%s)\n'
            f'  ROOT %r = {V} custom-call(%d, %b), custom_call_target="f"'
        )
    )
    place = {"x": 0, "a": 256, "s{1}": 512, "b": 256, "r": 768}
    apart = place | {"b": 1024}
    order = of_graph(read_hlo(path))
    assert [op.id for op in order.ops] == ["a", "s", "b", "d", "r"]
    arena = open_input(path, ReadOptions(target="arena")).problem
    for offsets, expected in ((place, {"overlap"}), (apart, set())):
        numbers = tuple(offsets[tensor.id] for tensor in order.tensors)
        plan = Plan(problem=order.digest, objective=1024, order=(0, 1, 2, 3, 4), offsets=numbers, arena=256 + max(numbers))
        assert {violation.code for violation in verify(order, plan).violations} == expected
        places = tuple(offsets[buffer.id] for buffer in arena.buffers)
        packed = PackingPlan(problem=arena.digest, objective=256 + max(numbers), offsets=places)
        assert {violation.code for violation in verify_packing(arena, packed).violations} == expected


def peak_of_arena(text: str, folder: Path) -> list[int]:
    path = folder / "m.hlo"
    path.write_text(text)
    buffers = open_input(path, ReadOptions(target="arena")).problem.buffers
    return [sum(one.size for one in buffers if one.lower <= each.lower < one.upper) for each in buffers]


def test_a_send_crosses_from_one_round_of_a_loop_to_the_next() -> None:
    """What is sent at the end of a round is done in the next one, or after the loop: the loop carries the start's tuple."""
    state = f"({V}, ({V}, u32[], token[]))"
    body = (
        f"%body () -> f32[] {{\n  %p = {state} parameter(0)\n  %v = {V} get-tuple-element(%p), index=0\n"
        f"  %t = ({V}, u32[], token[]) get-tuple-element(%p), index=1\n"
        '  %n = f32[64]{0} custom-call(%v), custom_call_target="f"\n  %sd = token[] send-done(%t), channel_id=1\n'
        '  %m = f32[64]{0} custom-call(%n), custom_call_target="f"\n'
        f"  %again = ({V}, u32[], token[]) send(%m, %sd), channel_id=1\n  ROOT %o = {state} tuple(%n, %again)\n}}\n"
        f"%test () -> pred[] {{\n  %q = {state} parameter(0)\n  ROOT %k = pred[] constant(true)\n}}\n"
    )
    found = program_from_module(
        parse_module(
            module(
                f'  %x = {V} parameter(0)\n  %a = {V} custom-call(%x), custom_call_target="f"\n  %z = token[] after-all()\n'
                f"  %s = ({V}, u32[], token[]) send(%a, %z), channel_id=1\n  %i = {state} tuple(%x, %s)\n"
                f"  %w = {state} while(%i), condition=%test, body=%body\n"
                f"  %g = ({V}, u32[], token[]) get-tuple-element(%w), index=1\n"
                f'  %l = {V} get-tuple-element(%w), index=0\n  %y = {V} custom-call(%l), custom_call_target="f"\n'
                f'  %e = token[] send-done(%g), channel_id=1\n  ROOT %r = {V} custom-call(%y), custom_call_target="f"',
                body,
            )
        )
    )
    names = [step.name for step in found.steps]
    assert names == ["a", "s", "n", "sd", "m", "again", "y", "e", "r"]
    sent = found.value_tensor["a"]
    assert sent == found.value_tensor["m"]
    assert {(each.tensor, each.start, each.end) for each in found.in_flight} == {(sent, 1, 4), (sent, 5, 8)}


def test_an_operation_in_a_branch_holds_its_operand_there(tmp_path: Path) -> None:
    branch = (
        f'%one () -> f32[] {{\n  %p1 = {V} parameter(0)\n  %a1 = {V} custom-call(%p1), custom_call_target="f"\n'
        f'  %s1 = ({V}, {V}, u32[]) copy-start(%a1)\n  %b1 = {V} custom-call(%p1), custom_call_target="f"\n'
        f'  %c1 = {V} custom-call(%b1), custom_call_target="f"\n  %d1 = {V} copy-done(%s1)\n'
        f'  ROOT %r1 = {V} custom-call(%d1, %c1), custom_call_target="f"\n}}\n'
        f'%other () -> f32[] {{\n  %p2 = {V} parameter(0)\n  ROOT %r2 = {V} custom-call(%p2), custom_call_target="f"\n}}\n'
    )
    text = module(
        f"  %x = {V} parameter(0)\n  %k = pred[] parameter(1)\n"
        f"  ROOT %r = {V} conditional(%k, %x, %x), true_computation=%one, false_computation=%other",
        branch,
    )
    found = program_from_module(parse_module(text))
    assert {(found.tensors[each.tensor].name, each.start, each.end) for each in found.in_flight} == {
        ("a1", 1, 5),
        ("s1{0}", 1, 5),
    }
    # x, the condition and the result; inside, a1, s1, b1 and c1 at once.
    assert order_peak(text, tmp_path) == 4 * 64 * 6 + 1
