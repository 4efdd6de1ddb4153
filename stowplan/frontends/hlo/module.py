"""An HLO module: computations of instructions, with their attributes as text and as numbers.

Functions and properties that read an attribute of an instruction raise an InputError, which names the instruction and its line,
if the text of the attribute is not valid, or if a needed attribute is missing. A *leaf* is an array in a value, which may be a
tuple; its *index* has the position at each level of the tuple, and is empty if the value is an array.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import msgspec

from stowplan.errors import InputError
from stowplan.frontends.hlo.shape import Shape, excerpt

# Parts of the text of attributes: a name, a string, a bracket or other mark, the index of a leaf, and a pair of leaves that
# share storage.
_ATTRIBUTE_NAME = re.compile(r"\s*([\w.\-]+)=")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_MARK = re.compile(r'[,{}()\[\]"]')
_INDEX = r"\{((?:[0-9]{1,9}(?:,\s*[0-9]{1,9})*,?)?)\s*\}"
_ALIAS = re.compile(rf"{_INDEX}:\s*\(\s*([0-9]{{1,9}})\s*,\s*{_INDEX}\s*(?:,\s*([a-z\-]+)\s*)?\)")


class Alias(msgspec.Struct, frozen=True):
    """An output leaf of an instruction (or the program) that shares storage with a leaf of an operand (or parameter)."""

    output_index: tuple[int, ...]
    """Index of the leaf in the result; empty if the result is an array."""
    operand: int
    """Number of the operand or parameter."""
    operand_index: tuple[int, ...]
    """Index of the leaf in the operand or parameter; empty if that is an array."""
    kind: str
    """``may-alias`` or ``must-alias`` in a module's header; empty for instructions."""


class Instruction(msgspec.Struct, frozen=True, gc=False):
    """One instruction as the text has it; short forms of asynchronous instructions are expanded."""

    name: str
    """Its name without the percent sign."""
    opcode: str
    """Its operation, such as ``fusion``."""
    shape: Shape
    """Shape of its result."""
    operands: tuple[str, ...]
    """Names of instructions of the same computation, all defined above this one."""
    argument: str
    """The text in the parentheses of a ``parameter`` or ``constant``; empty for all other opcodes."""
    attributes_text: str
    """The text after the operands, such as ``kind=kLoop, calls=%fused``."""
    called: tuple[str, ...]
    """Names of the computations that it calls: the condition and the body of a ``while``, the branches of a ``conditional``,
    and one or none for most others."""
    is_root: bool
    """Whether the text marks it as the result of its computation."""
    line: int
    """Its line in the text, counted from 1."""

    def attribute(self, name: str) -> str | None:
        """Text of one attribute; None if the instruction does not have it.

        This is faster than :attr:`attributes` on lines with long backend configurations.
        """
        if f"{name}=" not in self.attributes_text:
            return None
        for key, value in self._split():
            if key == name:
                return value
        return None

    @property
    def attributes(self) -> dict[str, str]:
        """Text of every attribute: ``{"kind": "kLoop", "calls": "%fused", ...}``."""
        return dict(self._split())

    @property
    def parameter_number(self) -> int | None:
        """Number of a ``parameter``; None for every other opcode."""
        return int(self.argument) if self.opcode == "parameter" else None

    @property
    def output_aliases(self) -> tuple[Alias, ...]:
        """The pairs of leaves in the attribute ``output_to_operand_aliasing``."""
        text = self.attribute("output_to_operand_aliasing")
        return () if text is None else parse_aliases(text, self.line)

    def error(self, message: str) -> InputError:
        """An error that names this instruction's line."""
        return InputError(f"%{self.name}: {message}", place=f"line {self.line}")

    def _split(self) -> Iterator[tuple[str, str]]:
        return split_attributes(self.attributes_text, self.line)


class Computation(msgspec.Struct, frozen=True, dict=True):
    """A computation: instructions in the order of the text, which is the schedule if the module is scheduled."""

    name: str
    """Its name without the percent sign."""
    instructions: tuple[Instruction, ...]
    """Its instructions, each after its operands."""
    root: Instruction
    """The instruction whose value the computation returns."""
    line: int
    """The line in which it begins, counted from 1."""

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        """The instructions by name."""
        return {instruction.name: instruction for instruction in self.instructions}

    @cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        """The parameters in the order of their numbers."""
        parameters = [instruction for instruction in self.instructions if instruction.opcode == "parameter"]
        return tuple(sorted(parameters, key=lambda instruction: int(instruction.argument)))


class HloModule(msgspec.Struct, frozen=True, dict=True):
    """A parsed module. Computations are in the order of the text, callees before their callers."""

    name: str
    """Its name in the header."""
    attributes_text: str
    """The text of the header after the name."""
    computations: dict[str, Computation]
    """All computations by name."""
    entry: Computation
    """The computation that runs as the program."""
    source: str | None = None
    """Path of the file from which it was read; None if it was parsed from a text."""

    @cached_property
    def attributes(self) -> dict[str, str]:
        """Text of every attribute of the header."""
        return dict(split_attributes(self.attributes_text, 1))

    @property
    def is_scheduled(self) -> bool:
        """Whether the order of the text is the compiler's schedule."""
        return self.attributes.get("is_scheduled") == "true"

    @cached_property
    def input_output_alias(self) -> tuple[Alias, ...]:
        """Donated parameters, whose storage the caller gives to the program, with the outputs that may (or must) use it."""
        text = self.attributes.get("input_output_alias")
        return () if text is None else parse_aliases(text, 1)


def split_attributes(text: str, line: int) -> Iterator[tuple[str, str]]:
    """Yields the name and the text of each attribute of ``name=value, name={...}, ...``; braces inside of strings are ignored.

    ``line`` is the number of the line for error messages.

    Raises
    ------
    InputError
        Brackets are not balanced, a string is not closed, or a part of the text is no attribute.
    """
    position = 0
    while position < len(text):
        name = _ATTRIBUTE_NAME.match(text, position)
        if name is None:
            raise InputError(f"found {excerpt(text[position:])}, expected an attribute name=value", place=f"line {line}")
        start = name.end()
        end = end_of_value(text, start, line)
        if end < len(text) and text[end] != ",":
            raise InputError(f"found {text[end]!r} after {excerpt(text[start:end])}, expected a comma", place=f"line {line}")
        yield name[1], text[start:end]
        position = end + 1


def end_of_value(text: str, start: int, line: int) -> int:
    """Position of the first comma or closing bracket from ``start`` on that is outside of brackets and strings.

    It is the length of the text if there is none.

    Raises
    ------
    InputError
        A string or bracket is never closed.
    """
    depth = 0
    position = start
    while mark := _MARK.search(text, position):
        position = mark.end()
        character = mark[0]
        if character == '"':
            string = _STRING.match(text, mark.start())
            if string is None:
                raise InputError(f"found a string that never ends, {excerpt(text[mark.start() :])}", place=f"line {line}")
            position = string.end()
        elif character in "{([":
            depth += 1
        elif character != ",":
            if depth == 0:
                return mark.start()
            depth -= 1
        elif depth == 0:
            return mark.start()
    if depth:
        raise InputError(f"found {depth} unclosed brackets after {excerpt(text[start:])}", place=f"line {line}")
    return len(text)


def parse_aliases(text: str, line: int) -> tuple[Alias, ...]:
    """Parses pairs of leaves that share storage, such as ``{ {0}: (1, {}, may-alias), ... }``; raises InputError for other
    texts."""
    inner = text.strip()
    aliases = tuple(
        Alias(_parse_index(match[1]), int(match[2]), _parse_index(match[3]), match[4] or "") for match in _ALIAS.finditer(inner)
    )
    if _ALIAS.sub("", inner).replace(" ", "").replace(",", "") != "{}":
        raise InputError(f"found {excerpt(text)}, expected aliases such as {{ {{0}}: (0, {{}}) }}", place=f"line {line}")
    return aliases


def _parse_index(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.replace(",", " ").split())


# Values of attributes: estimated cycles, lists of numbers, ranges of a slice, labels of dimensions, sizes, and paddings.
_CYCLES = re.compile(r'"estimated_cycles":"([0-9]{1,15})"')
_NUMBERS = re.compile(r"\{?\s*((?:-?[0-9]{1,18}(?:\s*,\s*-?[0-9]{1,18})*)?)\s*\}?")
_ONE_RANGE = r"\[[0-9]{1,18}:[0-9]{1,18}(?::[0-9]{1,18})?\]"
_RANGES = re.compile(rf"\{{\s*(?:{_ONE_RANGE}(?:\s*,\s*{_ONE_RANGE})*)?\s*\}}")
_RANGE = re.compile(r"\[(\d+):(\d+)(?::(\d+))?\]")
_LABELS = re.compile(r"([0-9bf?]+)_([0-9io?]+)->([0-9bf?]+)")
_SIZES = re.compile(r"[0-9]{1,18}(?:x[0-9]{1,18})*")
_PADS = re.compile(r"-?[0-9]{1,18}_-?[0-9]{1,18}(?:_[0-9]{1,18})?(?:x-?[0-9]{1,18}_-?[0-9]{1,18}(?:_[0-9]{1,18})?)*")


class Window(NamedTuple):
    """The attribute ``window={size=3x3 stride=2x2 pad=1_1x1_1}``; each list has an entry for each dimension."""

    size: list[int]
    """Extents of the window."""
    stride: list[int]
    """Distances between neighbouring positions of the window."""
    pad: list[tuple[int, int]]
    """Numbers of elements of padding before and after the operand."""
    lhs_dilate: list[int]
    """Distances between neighbouring elements of the dilated operand; 1 without dilation."""
    rhs_dilate: list[int]
    """Distances between neighbouring elements of the dilated window; 1 without dilation."""


def numbers(instruction: Instruction, name: str, *, below: int | None = None, needed: bool = True) -> list[int]:
    """The numbers of an attribute ``name={1,0}`` or ``name=1``; none if the attribute is missing and not ``needed``.

    Parameters
    ----------
    below
        If given, the numbers must be dimensions: all different, at least 0, and less than this. InputError is raised otherwise.
    needed
        Whether InputError is raised if the instruction does not have the attribute.
    """
    text = instruction.attribute(name)
    if text is None:
        if needed:
            raise instruction.error(f"found no {name}, expected {name}={{...}}")
        return []
    match = _NUMBERS.fullmatch(text)
    if match is None:
        raise instruction.error(f"found {name}={excerpt(text)}, expected whole numbers")
    values = [int(digits) for digits in match[1].split(",")] if match[1] else []
    if below is not None and (len(set(values)) < len(values) or any(not 0 <= number < below for number in values)):
        raise instruction.error(f"found {name}={excerpt(text)}, expected different dimensions from 0 to {below - 1}")
    return values


def number(instruction: Instruction, name: str, *, below: int) -> int:
    """The number of an attribute ``name=1``, which must be at least 0 and less than ``below``."""
    values = numbers(instruction, name)
    if len(values) != 1 or not 0 <= values[0] < below:
        raise instruction.error(f"found {name}={excerpt(str(instruction.attribute(name)))}, expected one number below {below}")
    return values[0]


def ranges(instruction: Instruction, rank: int) -> list[tuple[int, int, int]]:
    """Returns (start, end, step) for each of ``rank`` dimensions, from the attribute ``slice={[0:2], [1:10:2]}``. The step is
    at least 1; it is 1 if the text has none."""
    text = instruction.attribute("slice")
    parts = _RANGE.findall(text) if text is not None and _RANGES.fullmatch(text) else []
    bounds = [(int(start), int(end), int(step or 1)) for start, end, step in parts]
    if text is None or len(bounds) != rank:
        raise instruction.error(f"found slice={excerpt(str(text))}, expected {rank} ranges such as {{[0:2], [1:10:2]}}")
    if any(step < 1 or start > end for start, end, step in bounds):
        raise instruction.error(f"found slice={excerpt(text)}, expected ranges that go upwards")
    return bounds


def padding(instruction: Instruction, rank: int) -> list[tuple[int, int, int]]:
    """Returns (low, high, interior) for each of ``rank`` dimensions, from the attribute ``padding=1_0_1x0_2``.

    The three are the numbers of elements before the operand, after it, and between any two of its elements. Low and high may be
    negative; interior is 0 if the text has none.
    """
    text = instruction.attribute("padding") or ""
    if not rank and not text:
        return []
    pads = [tuple(map(int, part.split("_"))) for part in text.split("x")] if _PADS.fullmatch(text) else []
    if len(pads) != rank:
        raise instruction.error(f"found padding={excerpt(text)}, expected {rank} parts low_high or low_high_interior")
    return [(part[0], part[1], part[2] if len(part) > 2 else 0) for part in pads]


def window(instruction: Instruction, rank: int) -> Window:
    """Reads the attribute ``window`` of an instruction, which has ``rank`` dimensions. Missing paddings are 0, and all other
    missing entries are 1."""
    text = (instruction.attribute("window") or "{}").strip("{}")
    given: dict[str, str] = dict(part.split("=", 1) for part in text.split() if "=" in part)

    def sizes(name: str) -> list[int]:
        if name not in given:
            return [1] * rank
        extents = [int(digits) for digits in given[name].split("x")] if _SIZES.fullmatch(given[name]) else []
        if len(extents) != rank or any(size < 1 for size in extents):
            raise instruction.error(f"found window {excerpt(text)}, expected {name} as {rank} positive numbers")
        return extents

    pads = given.get("pad", "x".join(["0_0"] * rank))
    pairs = [tuple(map(int, part.split("_"))) for part in pads.split("x")] if _PADS.fullmatch(pads) else []
    if len(pairs) != rank:
        raise instruction.error(f"found window {excerpt(text)}, expected pad as {rank} parts low_high")
    return Window(
        sizes("size"), sizes("stride"), [(pair[0], pair[1]) for pair in pairs], sizes("lhs_dilate"), sizes("rhs_dilate")
    )


def convolution_labels(instruction: Instruction, left: int, right: int, result: int) -> tuple[str, str, str]:
    """The labels of dimensions in the attribute ``dim_labels=b01f_01io->b01f``, for operands and a result of these ranks.

    Returns one text each for the left operand, the right operand and the result. In them, ``b`` is the batch, ``f`` are
    features, ``i`` and ``o`` are input and output features of a kernel, and digits are spatial dimensions.
    """
    text = instruction.attribute("dim_labels") or ""
    match = _LABELS.fullmatch(text)
    if match is None:
        raise instruction.error(f"found dim_labels {excerpt(text)}, expected some such as b01f_01io->b01f")
    for labels, rank, features in zip(match.groups(), (left, right, result), ("bf", "io", "bf"), strict=True):
        spatial = "".join(map(str, range(len(labels) - 2)))
        if len(labels) != rank or sorted(labels) != sorted(features + spatial):
            raise instruction.error(f"found dim_labels {excerpt(text)}, expected {rank} distinct labels in {excerpt(labels)}")
    if not left == right == result:
        raise instruction.error(f"found dim_labels {excerpt(text)}, expected as many for both operands and the result")
    return match[1], match[2], match[3]


def estimated_cycles(instruction: Instruction) -> int | None:
    """The compiler's estimate of the clock cycles of one run; None if the instruction has none."""
    match = _CYCLES.search(instruction.attributes_text)
    return int(match[1]) if match else None
