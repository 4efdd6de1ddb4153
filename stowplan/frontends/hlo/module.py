"""An HLO module as its text gives it: computations of instructions, nothing interpreted beyond names and shapes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

import msgspec

from stowplan.errors import InputError
from stowplan.frontends.hlo.shape import Shape, excerpt

_ATTRIBUTE_NAME = re.compile(r"\s*([\w.\-]+)=")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_MARK = re.compile(r'[,{}()\[\]"]')
_INDEX = r"\{((?:[0-9]{1,9}(?:,\s*[0-9]{1,9})*,?)?)\s*\}"
_ALIAS = re.compile(rf"{_INDEX}:\s*\(\s*([0-9]{{1,9}})\s*,\s*{_INDEX}\s*(?:,\s*([a-z\-]+)\s*)?\)")


class Alias(msgspec.Struct, frozen=True):
    """An output leaf of an instruction (or the program) that shares storage with a leaf of an operand (or parameter)."""

    output_index: tuple[int, ...]
    operand: int
    operand_index: tuple[int, ...]
    kind: str
    """``may-alias`` or ``must-alias`` in a module's header, empty elsewhere."""


class Instruction(msgspec.Struct, frozen=True, gc=False):
    """One instruction as written."""

    name: str
    opcode: str
    shape: Shape
    operands: tuple[str, ...]
    """Names of instructions of the same computation, all defined above this one."""
    argument: str
    """What stands between the parentheses of a ``parameter`` or ``constant``; empty for all others."""
    attributes_text: str
    called: tuple[str, ...]
    """Computations it calls: ``(condition, body)`` for a while, the branches of a conditional, else one or none."""
    is_root: bool
    line: int

    def attribute(self, name: str) -> str | None:
        """Text of one attribute, or None. Cheaper than :attr:`attributes` on lines with long backend configurations."""
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
        """Number of a ``parameter``, None for every other opcode."""
        return int(self.argument) if self.opcode == "parameter" else None

    @property
    def output_aliases(self) -> tuple[Alias, ...]:
        """Pairs of ``output_to_operand_aliasing``."""
        text = self.attribute("output_to_operand_aliasing")
        return () if text is None else parse_aliases(text, self.line)

    def error(self, message: str) -> InputError:
        """An error that names this instruction's line."""
        return InputError(f"%{self.name}: {message}", place=f"line {self.line}")

    def _split(self) -> Iterator[tuple[str, str]]:
        return split_attributes(self.attributes_text, self.line)


class Computation(msgspec.Struct, frozen=True, dict=True):
    """Instructions in text order, which is the schedule where the module is scheduled."""

    name: str
    instructions: tuple[Instruction, ...]
    root: Instruction
    line: int

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        """Instruction of each name."""
        return {instruction.name: instruction for instruction in self.instructions}

    @cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        """Parameters by number."""
        found = [instruction for instruction in self.instructions if instruction.opcode == "parameter"]
        return tuple(sorted(found, key=lambda instruction: int(instruction.argument)))


class HloModule(msgspec.Struct, frozen=True, dict=True):
    """A parsed module. Computations stand in text order, callees before their callers."""

    name: str
    attributes_text: str
    computations: dict[str, Computation]
    entry: Computation
    source: str | None = None
    """File it was read from."""

    @cached_property
    def attributes(self) -> dict[str, str]:
        """Text of every attribute of the header."""
        return dict(split_attributes(self.attributes_text, 1))

    @property
    def is_scheduled(self) -> bool:
        """Whether text order is the compiler's schedule."""
        return self.attributes.get("is_scheduled") == "true"

    @cached_property
    def input_output_alias(self) -> tuple[Alias, ...]:
        """Parameters the caller donates, and the outputs that may (or must) take their storage."""
        text = self.attributes.get("input_output_alias")
        return () if text is None else parse_aliases(text, 1)

    @property
    def instruction_count(self) -> int:
        """Instructions of all computations."""
        return sum(len(computation.instructions) for computation in self.computations.values())


def split_attributes(text: str, line: int) -> Iterator[tuple[str, str]]:
    """Name and text of each attribute of ``name=value, name={...}, ...``; braces within strings count for nothing.

    Raises
    ------
    InputError
        Unbalanced brackets, an unfinished string, or something that is no attribute.
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
    """Position of the first comma or closing bracket from ``start`` that stands in no bracket or string, or the text's length.

    Raises
    ------
    InputError
        A string or bracket that is never closed.
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
    """Pairs of ``{ {0}: (1, {}, may-alias), ... }``."""
    inner = text.strip()
    aliases = tuple(
        Alias(_parse_index(match[1]), int(match[2]), _parse_index(match[3]), match[4] or "") for match in _ALIAS.finditer(inner)
    )
    if _ALIAS.sub("", inner).replace(" ", "").replace(",", "") != "{}":
        raise InputError(f"found {excerpt(text)}, expected aliases such as {{ {{0}}: (0, {{}}) }}", place=f"line {line}")
    return aliases


def _parse_index(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.replace(",", " ").split())
