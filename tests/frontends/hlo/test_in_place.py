"""What fusions may be written over: rules against runs of made-up fusions, element by element, in any order."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import pytest

from stowplan.frontends.hlo.in_place import Group, InPlaceRules
from stowplan.frontends.hlo.module import Computation, HloModule, Instruction
from stowplan.frontends.hlo.parse import parse_module
from stowplan.frontends.hlo.shape import ArrayShape

#: Values are whole numbers below this, so that sums and products are the same in any order.
MODULUS = 1009

Index = tuple[int, ...]

#: What modules begin with, up to the fused computation.
SUM = """HloModule m

%sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

%fused {"""


def numbers(instruction: Instruction, name: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", instruction.attribute(name) or "")]


def array(instruction: Instruction) -> ArrayShape:
    assert isinstance(instruction.shape, ArrayShape)
    return instruction.shape


def indices(shape: ArrayShape) -> Iterator[Index]:
    return product(*map(range, shape.dims))


def position(shape: ArrayShape, index: Index) -> int:
    """Where an element is stored."""
    at, stride = 0, 1
    for dimension in shape.minor_to_major:
        at += index[dimension] * stride
        stride *= shape.dims[dimension]
    return at


class Fusion:
    """Computes elements of a fused computation from buffers, each when it is asked for, as the loops that XLA emits do."""

    def __init__(self, computation: Computation, buffers: Sequence[Sequence[int]]):
        self.computation = computation
        self.buffers = [list(buffer) for buffer in buffers]
        """Elements of each parameter, as they are stored."""

    def element(self, name: str, index: Index) -> int:
        """Value of an instruction at an index."""
        instruction = self.computation.by_name[name]
        shape, opcode = array(instruction), instruction.opcode
        sources = [self.computation.by_name[each] for each in instruction.operands]

        def value(operand: int, at: Sequence[int]) -> int:
            return self.element(instruction.operands[operand], tuple(at))

        if opcode == "parameter":
            return self.buffers[int(instruction.argument)][position(shape, index)]
        if opcode == "constant":
            return int(instruction.argument)
        if opcode in ("negate", "copy"):
            return (-value(0, index) if opcode == "negate" else value(0, index)) % MODULUS
        if opcode in ("add", "multiply"):
            one, other = value(0, index), value(1, index)
            return (one + other if opcode == "add" else one * other) % MODULUS
        source = array(sources[0])
        if opcode == "bitcast":
            stored = position(shape, index)
            return value(0, next(each for each in indices(source) if position(source, each) == stored))
        if opcode == "reshape":
            return value(0, [*indices(source)][[*indices(shape)].index(index)])
        dimensions = numbers(instruction, "dimensions")
        if opcode == "transpose":
            return value(0, [index[dimensions.index(each)] for each in range(len(index))])
        if opcode == "reverse":
            sides = enumerate(zip(index, shape.dims, strict=True))
            return value(0, [side - 1 - at if each in dimensions else at for each, (at, side) in sides])
        if opcode == "broadcast":
            return value(0, [index[each] for each in dimensions])
        if opcode == "reduce":
            rest = iter(index)
            fixed = [None if each in dimensions else next(rest) for each in range(len(source.dims))]
            ranges = (range(side) if at is None else (at,) for at, side in zip(fixed, source.dims, strict=True))
            return sum(value(0, each) for each in product(*ranges)) % MODULUS
        if opcode == "concatenate":
            first = source.dims[dimensions[0]]
            at = index[dimensions[0]]
            moved = [each - first if number == dimensions[0] else each for number, each in enumerate(index)]
            return value(0, index) if at < first else value(1, moved)
        if opcode == "slice":
            starts = numbers(instruction, "slice")[::2]
            return value(0, [start + at for start, at in zip(starts, index, strict=True)])
        starts = self.starts(instruction)
        if opcode == "dynamic-slice":
            return value(0, [start + at for start, at in zip(starts, index, strict=True)])
        assert opcode == "dynamic-update-slice"
        moved = [at - start for start, at in zip(starts, index, strict=True)]
        is_inside = all(0 <= at < side for at, side in zip(moved, array(sources[1]).dims, strict=True))
        return value(1, moved) if is_inside else value(0, index)

    def starts(self, instruction: Instruction) -> list[int]:
        """Where a dynamic slice begins."""
        is_update = instruction.opcode == "dynamic-update-slice"
        whole = array(self.computation.by_name[instruction.operands[0]]).dims
        part = array(self.computation.by_name[instruction.operands[1]]).dims if is_update else array(instruction).dims
        names = instruction.operands[1 + is_update :]
        room = [side - own for side, own in zip(whole, part, strict=True)]
        return [min(max(0, self.element(name, ())), most) for name, most in zip(names, room, strict=True)]

    def results(self) -> list[Instruction]:
        """Instructions behind the results."""
        root = self.computation.root
        return [self.computation.by_name[name] for name in root.operands] if root.opcode == "tuple" else [root]


def run(fusion: Fusion, over: dict[int, int], written: Sequence[Index]) -> list[list[int]]:
    """Elements of the results as stored; result ``over[parameter]`` is written over the buffer of a parameter.

    ``written`` are the indices that are computed, in this order.
    """
    results = fusion.results()
    buffers: list[list[int]] = [[-1] * prod(array(each).dims) for each in results]
    for parameter, result in over.items():
        buffers[result] = fusion.buffers[parameter]
    for index in written:
        values = [fusion.element(each.name, index) for each in results]
        for each, buffer, value in zip(results, buffers, values, strict=True):
            buffer[position(array(each), index)] = value
    return buffers


SHAPES = ("s32[2,3]{1,0}", "s32[2,3]{0,1}", "s32[3,2]{1,0}", "s32[3,2]{0,1}", "s32[6]{0}")
PLAIN = ("negate", "add", "multiply", "copy", "bitcast")
OTHERS = ("transpose", "reverse", "reshape", "spread", "halves", "part", "update", "relayout")


class Writer:
    """Writes the text of a fusion step by step."""

    def __init__(self, chance: random.Random, parameters: int):
        self.chance = chance
        self.lines: list[str] = []
        self.values: list[tuple[str, str]] = []
        self.is_plain = True
        """Whether all instructions keep every element at its place."""
        layout = chance.choice(SHAPES)
        for number in range(parameters):
            shape = layout if chance.random() < 0.8 else chance.choice(SHAPES)
            self.values.append((self.line(shape, f"parameter({number})"), shape))
        self.at = [self.line("s32[]", f"constant({chance.randrange(2)})") for _ in range(2)]

    def line(self, shape: str, text: str) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"  {name} = {shape} {text}")
        return name

    def step(self, kind: str) -> None:
        """Another value, made of one or two others."""
        name, shape = self.chance.choice(self.values[-3:])
        self.is_plain &= kind in PLAIN
        dims = [int(digits) for digits in re.findall(r"\d+", shape.split("{")[0])[1:]]
        plain, layout = shape.split("{")
        if kind in ("add", "multiply"):
            other = self.chance.choice([each for each, other in self.values if other == shape])
            self.values.append((self.line(shape, f"{kind}({name}, {other})"), shape))
        elif kind in ("negate", "copy"):
            self.values.append((self.line(shape, f"{kind}({name})"), shape))
        elif kind in ("bitcast", "reshape"):
            result = self.chance.choice(SHAPES)
            self.values.append((self.line(result, f"{kind}({name})"), result))
        elif kind == "relayout":
            result = self.chance.choice([each for each in SHAPES if each.startswith(plain)])
            self.values.append((self.line(result, f"copy({name})"), result))
        elif kind == "reverse":
            self.values.append((self.line(shape, f"reverse({name}), dimensions={{0}}"), shape))
        elif len(dims) == 2:
            self._of_two_dimensions(kind, name, shape, dims, layout)

    def _of_two_dimensions(self, kind: str, name: str, shape: str, dims: list[int], layout: str) -> None:
        row = f"s32[1,{dims[1]}]{{{layout}"
        if kind == "transpose":
            result = f"s32[{dims[1]},{dims[0]}]{{{layout}"
            self.values.append((self.line(result, f"transpose({name}), dimensions={{1,0}}"), result))
        elif kind == "spread":
            zero = self.line("s32[]", "constant(0)")
            sums = self.line(f"s32[{dims[0]}]{{0}}", f"reduce({name}, {zero}), dimensions={{1}}, to_apply=%sum")
            self.values.append((self.line(shape, f"broadcast({sums}), dimensions={{0}}"), shape))
        elif kind == "halves":
            rest = f"s32[{dims[0] - 1},{dims[1]}]{{{layout}"
            one = self.line(row, f"slice({name}), slice={{[0:1], [0:{dims[1]}]}}")
            other = self.line(rest, f"slice({name}), slice={{[1:{dims[0]}], [0:{dims[1]}]}}")
            self.values.append((self.line(shape, f"concatenate({other}, {one}), dimensions={{0}}"), shape))
        else:
            zero = self.line("s32[]", "constant(0)")
            source = name if kind == "part" else self.chance.choice(self.values)[0]
            source = source if dict(self.values).get(source) == shape else name
            at = self.at[0] if kind == "part" else self.at[1]
            sizes = f"dynamic_slice_sizes={{1,{dims[1]}}}"
            part = self.line(row, f"dynamic-slice({source}, {at}, {zero}), {sizes}")
            if self.chance.random() < 0.5:
                part = self.line(row, f"{self.chance.choice(['negate', 'copy'])}({part})")
            elif self.chance.random() < 0.3:
                part = self.line(row, f"reverse({part}), dimensions={{1}}")
            text = f"dynamic-update-slice({name}, {part}, {self.at[0]}, {zero})"
            self.values.append((self.line(shape, text), shape))

    def module(self, parameters: int, results: list[tuple[str, str]], kind: str = "kLoop") -> HloModule:
        """The fusion of these results in a module that calls it."""
        lines, whole = list(self.lines), results[0][1]
        if len(results) > 1:
            whole = f"({', '.join(shape for _, shape in results)})"
            lines.append(f"  ROOT root = {whole} tuple({', '.join(name for name, _ in results)})")
        else:
            lines = [line.replace(f"  {results[0][0]} =", f"  ROOT {results[0][0]} =") for line in lines]
        given = [f"  p{number} = {shape} parameter({number})" for number, (_, shape) in enumerate(self.values[:parameters])]
        names = ", ".join(f"p{number}" for number in range(parameters))
        root = f"  ROOT r = {whole} fusion({names}), kind={kind}, calls=%fused"
        return parse_module("\n".join([SUM.replace("f32", "s32"), *lines, "}\n\nENTRY %main {", *given, root, "}\n"]))


def rules_of(module: HloModule) -> tuple[InPlaceRules, list[Group]]:
    rules = InPlaceRules(module)
    return rules, rules.groups(module.entry.root, module.entry)


def orders(chance: random.Random, shape: ArrayShape) -> Iterator[list[Index]]:
    """Some orders of all indices."""
    every = [*indices(shape)]
    yield every
    yield every[::-1]
    for _ in range(5):
        yield chance.sample(every, len(every))


def test_fusions_give_the_same_in_place_wherever_the_rules_allow_it() -> None:
    chance = random.Random(5)
    allowed = refused = 0
    for _ in range(500):
        count = chance.randint(1, 3)
        writer = Writer(chance, count)
        kinds = PLAIN if chance.random() < 0.4 else (*PLAIN, *OTHERS)
        for _ in range(chance.randint(1, 5)):
            writer.step(chance.choice(kinds))
        module = writer.module(count, writer.values[-1:])
        rules, groups = rules_of(module)
        fused = module.computations["fused"]
        buffers = [[chance.randrange(MODULUS) for _ in range(6)] for _ in range(count)]
        shape = array(module.entry.root)
        expected = run(Fusion(fused, buffers), {}, [*indices(shape)])
        may = {number for group in groups for number, _ in group.operands}
        for number in range(count):
            if number in may - rules.pointwise["fused"]:
                continue  # written by an update in place, which the next test runs
            same = [run(Fusion(fused, buffers), {number: 0}, order) == expected for order in orders(chance, shape)]
            if number in may:
                allowed += 1
                assert all(same), module
            else:
                refused += 1
                # A bitcast may change which element is at which place only between two layouts.
                assert not (writer.is_plain and all(same)) or "bitcast" in str(writer.lines), writer.lines
    assert allowed > 150
    assert refused > 150


def test_updates_give_the_same_in_place_wherever_the_rules_allow_it() -> None:
    chance = random.Random(7)
    outcomes: dict[tuple[str, bool], int] = {}
    for _ in range(400):
        writer = Writer(chance, 2)
        layout = chance.choice(SHAPES[:4])
        writer.lines = []
        writer.values = [(writer.line(layout, f"parameter({number})"), layout) for number in range(2)]
        writer.at = [writer.line("s32[]", f"constant({chance.randrange(3)})") for _ in range(2)]
        zero = writer.line("s32[]", "constant(0)")
        dims = [int(digits) for digits in re.findall(r"\d+", layout)[1:3]]
        rows = dims[0] - 1
        part_shape = f"s32[{rows},{dims[1]}]{{{layout.split('{')[1]}"
        kind = chance.choice(["other's", "same", "elsewhere", "reversed", "summed", "both"])
        at = writer.at[1] if kind == "elsewhere" else writer.at[0]
        source = "v1" if kind == "other's" else "v0"
        part = writer.line(part_shape, f"dynamic-slice({source}, {at}, {zero}), dynamic_slice_sizes={{{rows},{dims[1]}}}")
        if kind == "reversed":
            part = writer.line(part_shape, f"reverse({part}), dimensions={{1}}")
        elif kind == "summed":
            total = writer.line("s32[]", f"reduce(v0, {zero}), dimensions={{0,1}}, to_apply=%sum")
            part = writer.line(part_shape, f"broadcast({total}), dimensions={{}}")
        elif kind == "both":
            part = writer.line(part_shape, f"add({part}, {part})")
        part = writer.line(part_shape, f"negate({part})")
        update = writer.line(layout, f"dynamic-update-slice(v0, {part}, {writer.at[0]}, {zero})")
        module = writer.module(2, [(update, layout)])
        _, groups = rules_of(module)
        fused = module.computations["fused"]
        buffers = [[chance.randrange(MODULUS) for _ in range(6)] for _ in range(2)]
        shape = array(module.entry.root)
        expected = run(Fusion(fused, buffers), {}, [*indices(shape)])
        start = Fusion(fused, buffers).starts(fused.root)[0]
        may = (0, 0) in [operand for group in groups for operand in group.operands]
        # Only the slice is written.
        ways = [[index for index in order if start <= index[0] < start + rows] for order in orders(chance, shape)]
        same = all(run(Fusion(fused, buffers), {0: 0}, way) == expected for way in ways)
        assert same or not may, writer.lines
        assert may == (kind in ("other's", "same", "both")), (kind, writer.lines)
        outcomes[kind, same] = outcomes.get((kind, same), 0) + 1
    assert {kind for kind, same in outcomes if not same} == {"elsewhere", "reversed", "summed"}


def test_fusions_of_several_results_give_the_same_in_place_wherever_the_rules_allow_it() -> None:
    chance = random.Random(11)
    allowed = 0
    for _ in range(400):
        count = chance.randint(1, 3)
        writer = Writer(chance, count)
        for _ in range(chance.randint(2, 6)):
            writer.step(chance.choice(PLAIN if chance.random() < 0.7 else OTHERS))
        made = writer.values[count:]
        if len(made) < 2:
            continue
        sides = made[-1][1].split("{")[0]
        results = [each for each in made if each[1].startswith(sides)][-2:]
        if len(results) < 2:
            continue
        module = writer.module(count, results)
        rules, groups = rules_of(module)
        fused = module.computations["fused"]
        buffers = [[chance.randrange(MODULUS) for _ in range(6)] for _ in range(count)]
        shape = array(fused.by_name[results[0][0]])
        expected = run(Fusion(fused, buffers), {}, [*indices(shape)])
        for group in groups:
            operands = [number for number, _ in group.operands if number in rules.pointwise["fused"]]
            ways = [dict(zip(operands, way, strict=False)) for way in (group.results, group.results[::-1])]
            for over in ways if operands else []:
                allowed += 1
                for order in orders(chance, shape):
                    assert run(Fusion(fused, buffers), over, order) == expected, (over, writer.lines)
    assert allowed > 150


V = "f32[8]{0}"


def groups(fused: str, given: Sequence[str] = (V, V), result: str = V, kind: str = "kLoop") -> list[tuple[Any, Any]]:
    """Numbers of operands and of results that may share, of a fusion of this text."""
    parameters = [f"  p{number} = {shape} parameter({number})" for number, shape in enumerate(given)]
    names = ", ".join(f"p{number}" for number in range(len(given)))
    text = "\n".join(
        [
            SUM,
            *parameters,
            *(f"  {line}" for line in fused.split("; ")),
            "}\n\nENTRY %main {",
            *parameters,
            f"  ROOT r = {result} fusion({names}), kind={kind}, calls=%fused\n}}\n",
        ]
    )
    return [([number for number, _ in group.operands], group.results) for group in rules_of(parse_module(text))[1]]


DOT = "d = f32[4,4]{1,0} dot(p0, p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}; "
SQUARE = "f32[4,4]{1,0}"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (groups(f"ROOT r = {V} subtract(p0, p1)"), [([0, 1], [0])]),
        (groups(f"n = {V} negate(p0); ROOT r = ({V}, {V}) tuple(n, p1)", result=f"({V}, {V})"), [([0, 1], [0, 1])]),
        (groups(f"ROOT r = {V} subtract(p0, p1)", kind="kInput"), [([0, 1], [0])]),
        (groups(f"ROOT r = {V} subtract(p0, p1)", kind="kCustom"), []),
        (groups(f"{DOT}ROOT r = {SQUARE} add(d, p2)", (SQUARE,) * 3, SQUARE, "kOutput"), [([2], [0])]),
        (groups(f"{DOT}ROOT r = {SQUARE} add(d, p0)", (SQUARE,) * 2, SQUARE, "kOutput"), []),
        (groups(f"{DOT}ROOT r = {SQUARE} multiply(d, p2)", (SQUARE,) * 3, SQUARE, "kOutput"), []),
        (groups(f"{DOT}ROOT r = {SQUARE} add(d, p2)", (SQUARE,) * 3, SQUARE), [([2], [0])]),
        (groups(f"c = f32[8]{{0}} convert(p1); ROOT r = {V} add(p0, c)", (V, "bf16[8]{0}")), [([0], [0])]),
        (groups("ROOT r = s32[8]{0} bitcast-convert(p0)", (V,), "s32[8]{0}"), [([0], [0])]),
        (groups(f"i = s32[8]{{0}} iota(), iota_dimension=0; ROOT r = {V} gather(p0, i)", (V,)), []),
        (groups(f"ROOT r = {V} add(p0, p1)", (V, "f32[8]{0:T(1024)}")), [([0], [0])]),
        (groups("ROOT r = f32[8]{0:T(1024)} negate(p0)", ("f32[8]{0:T(1024)}",), "f32[8]{0:T(1024)}"), [([0], [0])]),
        (groups(f"ROOT r = {V} add(p0, p1)", (V, "f32[8]{0:S(1)}")), [([0], [0])]),
        (
            groups(f"t = {SQUARE} transpose(p0), dimensions={{1,0}}; ROOT r = {SQUARE} add(t, p1)", (SQUARE,) * 2, SQUARE),
            [([1], [0])],
        ),
    ],
)
def test_who_may_be_written_over(found: list[Any], expected: list[Any]) -> None:
    assert found == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sort(p0), dimensions={0}, to_apply=%less", [([0], [0])]),
        ("copy(p0)", [([0], [0])]),
        ("reverse(p0), dimensions={0}", []),
        ("dynamic-update-slice(p0, p1, p2)", [([0], [0]), ([0], [0])]),
    ],
)
def test_single_instructions_that_may_be_written_over_what_they_read(line: str, expected: list[Any]) -> None:
    text = (
        "HloModule m\n\n%less {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
        "  ROOT c = pred[] compare(a, b), direction=LT\n}\n\n"
        f"ENTRY %main {{\n  p0 = {V} parameter(0)\n  p1 = f32[2]{{0}} parameter(1)\n"
        f"  p2 = s32[] parameter(2)\n  ROOT r = {V} {line}\n}}\n"
    )
    found = rules_of(parse_module(text))[1]
    assert [([number for number, _ in group.operands], group.results) for group in found] == expected
