"""Parses HLO text, as ``--xla_dump_hlo_as_text`` writes it, with or without ``%`` signs and signatures of computations.

One regular expression parses nearly every line of an instruction; a slower scanner parses the others, which have nested tuple
shapes or literals with parentheses. The text of each shape is parsed once, because the same shapes occur in many lines.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stowplan import files
from stowplan.deadline import check_reading
from stowplan.errors import InputError, naming
from stowplan.file_uses import hint_for_text, refusal_of
from stowplan.frontends.hlo.module import Computation, HloModule, Instruction, end_of_value, split_attributes
from stowplan.frontends.hlo.opcodes import OPCODES
from stowplan.frontends.hlo.shape import Shape, TupleShape, excerpt, parse_shape

# Parts of the text: the header of a module, the start of a computation, a whole instruction, an instruction up to its operands,
# a comment, an operand, and the number of a parameter.
_HEADER = re.compile(r"HloModule\s+([\w.\-]+)\s*(?:,\s*(.*))?")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) ")
_INSTRUCTION = re.compile(
    r"(ROOT )?%?([\w.\-]+) = ([a-z][a-z0-9]*\[[^\]]*\](?:\{[^{}]*\})?|\(.*?\)) ([a-z][\w\-]*)\(([^()\"]*)\)(?:, (.*))?"
)
_INSTRUCTION_HEAD = re.compile(r"(ROOT )?%?([\w.\-]+) = ([a-z][a-z0-9]*\[[^\]]*\](?:\{[^{}]*\})?|\(.*?\)) ([a-z][\w\-]*)\(")
_COMMENT = re.compile(r"/\*[^*]*\*/")
_OPERAND = re.compile(r"(?:.*\s)?%?([\w.\-]+)")
_NUMBER = re.compile(r"[0-9]{1,9}")

#: Tables of source locations that newer compilers write between the header and the computations.
_TABLES = frozenset({"FileNames", "FunctionNames", "FileLocations", "StackFrames"})
#: Attributes that name the computations that an instruction calls.
_CALL_ATTRIBUTES = (
    "condition",
    "body",
    "calls",
    "to_apply",
    "true_computation",
    "false_computation",
    "branch_computations",
    "called_computations",
    "select",
    "scatter",
)
#: For each opcode, the least number of computations that an instruction must call.
_CALLS = {"while": 2, "fusion": 1, "call": 1, "conditional": 1, "async-start": 1}
#: Attributes of an asynchronous instruction ``X-start`` that belong to it. Its other attributes belong to the operation X,
#: which it starts.
_START_ONLY = ("async_execution_thread", "backend_config", "control-predecessors", "cross_program_prefetch_index", "metadata")
#: Number of bytes of a file that are read to decide whether it is HLO text.
_PEEK_BYTES = 1 << 12


def read_module(path: str | Path) -> HloModule:
    """Reads a module from a plain or gzip file of HLO text.

    Raises
    ------
    InputError
        The file cannot be read, or is not HLO text; the message names the line. If a file does not start like a module, the
        rest is not read.
    TimeLimitError
        The time limit for reading inputs is over.
    """
    with naming(path):
        head = _peek(path)
        if refusal := refusal_of(head, path):
            raise InputError(refusal)
        try:
            _check_start(head)
        except InputError as error:
            raise InputError(f"{error.message}{hint_for_text(path)}", place=error.place) from None
        return parse_module(files.read_text(path), source=str(path))


def parse_module(text: str, source: str | None = None) -> HloModule:
    """Parses a module from HLO text.

    ``source`` is the path of the file that has the text, for error messages; None if there is no file.

    Raises
    ------
    InputError
        The text is not valid; the message names the line, what was found, and what was expected.
    TimeLimitError
        The time limit for reading inputs is over.
    """
    return _Parser(text, source).parse()


def _peek(path: str | Path) -> bytes:
    """The first bytes of a file, after decompression.

    For a file that cannot be read, the word with which a module begins is returned. The error is then raised when the whole
    file is read.
    """
    try:
        with open(path, "rb") as stream:
            if stream.read(2) != b"\x1f\x8b":
                stream.seek(0)
                return stream.read(_PEEK_BYTES)
            stream.seek(0)
            with gzip.GzipFile(fileobj=stream) as unpacked:
                return unpacked.read(_PEEK_BYTES)
    except (OSError, EOFError, zlib.error):
        return b"HloModule"


def _check_start(head: bytes) -> None:
    """Raises InputError unless the first line of code, after empty lines and comments, begins as a module does."""
    line = 1
    for row in head.splitlines():
        stripped = row.strip()
        if stripped and not stripped.startswith(b"//"):
            if not stripped.startswith(b"HloModule"):
                raise InputError(f"found {excerpt(repr(stripped)[2:-1], 40)}, expected HloModule", place=f"line {line}")
            return
        line += 1
    if len(head) < _PEEK_BYTES:
        raise InputError("found an empty file, expected HloModule", place="line 1")
    raise InputError(f"found {len(head)} bytes without HloModule", place="line 1")


def _is_signature(text: str) -> bool:
    """Whether a text is ``{`` or ``(parameters) -> result {``; the signature is not parsed, since instructions repeat it."""
    return text == "{" or (text.startswith("(") and text.endswith(" {") and ") -> " in text)


def _lines(text: str) -> Iterator[str]:
    """Yields lines one at a time, because a list of all lines would double the memory of a large file."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start:end].strip()
        start = end + 1
    if start < len(text):
        yield text[start:].strip()


class _Parser:
    """The state of one pass over the text; ``line`` is the number of the current line."""

    def __init__(self, text: str, source: str | None):
        self.text = text
        self.source = source
        self.line = 0
        self.computations: dict[str, Computation] = {}
        self.shapes: dict[str, Shape] = {}

    def parse(self) -> HloModule:
        """Parses the module; errors without a place get the current line."""
        lines = _lines(self.text)
        try:
            return self._parse(lines)
        except InputError as error:
            placed = error if error.place else InputError(error.message, place=f"line {self.line}")
            raise (placed.within(self.source) if self.source else placed) from error

    def _parse(self, lines: Iterator[str]) -> HloModule:
        name, attributes_text = self._header(lines)
        entry: Computation | None = None
        in_table = False
        for line in lines:
            self.line += 1
            if not line:
                in_table = False
            elif not in_table:
                if line in _TABLES:
                    in_table = True
                    continue
                match = _COMPUTATION.match(line)
                if match is None or not _is_signature(line[match.end() :]):
                    raise InputError(f"found {excerpt(line)}, expected the start of a computation, '%name (...) -> ... {{'")
                if match[2] in self.computations:
                    raise InputError(
                        f"found computation %{match[2]} a second time (first in line {self.computations[match[2]].line})"
                    )
                if match[1] and entry is not None:
                    raise InputError(f"found a second ENTRY (first in line {entry.line})")
                computation = self._computation(match[2], lines)
                self.computations[computation.name] = computation
                if match[1]:
                    entry = computation
        if entry is None:
            raise InputError("found the end of the text, expected an ENTRY computation")
        return HloModule(name, attributes_text, self.computations, entry, self.source)

    def _header(self, lines: Iterator[str]) -> tuple[str, str]:
        """The name of the module and the text of its attributes."""
        for line in lines:
            self.line += 1
            if not line or line.startswith("//"):
                continue
            match = _HEADER.fullmatch(line)
            if match is None:
                raise InputError(f"found {excerpt(line)}, expected 'HloModule name, ...'")
            attributes_text = match[2] or ""
            for _ in split_attributes(attributes_text, self.line):
                pass
            return match[1], attributes_text
        raise InputError("found the end of the text, expected HloModule")

    def _computation(self, name: str, lines: Iterator[str]) -> Computation:
        """Parses the lines of a computation up to its closing brace."""
        opened = self.line
        instructions: dict[str, Instruction] = {}
        root: Instruction | None = None
        parameters: set[str] = set()
        for line in lines:
            self.line += 1
            if not self.line % 1024:
                check_reading()
            if line.startswith("}"):
                if not instructions:
                    raise InputError(f"found the end of %{name}, expected an instruction")
                if len(parameters) and max(map(int, parameters)) != len(parameters) - 1:
                    raise InputError(
                        f"found parameters {', '.join(sorted(parameters))} in %{name}, expected 0 to {len(parameters) - 1}"
                    )
                rows = tuple(instructions.values())
                return Computation(name, rows, root or rows[-1], opened)
            if not line:
                continue
            instruction = self._instruction(line, instructions)
            if instruction.name in instructions:
                raise InputError(
                    f"found instruction %{instruction.name} a second time (first in line {instructions[instruction.name].line})"
                )
            if instruction.is_root:
                if root is not None:
                    raise InputError(f"found a second ROOT in %{name} (first in line {root.line})")
                root = instruction
            if instruction.opcode == "parameter":
                if instruction.argument in parameters:
                    raise InputError(f"found parameter({instruction.argument}) a second time in %{name}")
                parameters.add(instruction.argument)
            instructions[instruction.name] = instruction
        raise InputError(f"found the end of the text, expected the closing brace of %{name} opened in line {opened}")

    def _instruction(self, line: str, instruction_of: dict[str, Instruction]) -> Instruction:
        """Parses a line; ``instruction_of`` has the instructions of the computation that are defined above it."""
        match = _INSTRUCTION.fullmatch(line)
        if match is not None:
            root, name, shape_text, opcode, argument, attributes_text = match.groups()
            attributes_text = attributes_text or ""
        else:
            root, name, shape_text, opcode, argument, attributes_text = self._split_slowly(line)
        shape = self.shapes.get(shape_text)
        if shape is None:
            shape = self.shapes[shape_text] = parse_shape(shape_text)
        operands: tuple[str, ...] = ()
        if opcode == "parameter":
            if _NUMBER.fullmatch(argument) is None:
                raise InputError(f"found parameter({argument}), expected a number")
            argument = str(int(argument))
        elif opcode != "constant":
            operands = self._operands(argument, instruction_of)
            argument = ""
        called: tuple[str, ...] = ()
        operation = opcode if opcode in OPCODES else opcode.removesuffix("-start")
        if attributes_text:
            _check_balance(attributes_text, self.line)
            if operation in _CALLS or any(f"{key}=" in attributes_text for key in _CALL_ATTRIBUTES):
                called = self._called(attributes_text, operation)
        elif operation in _CALLS:
            raise InputError(f"found {opcode} without attributes, expected the computations it calls")
        instruction = Instruction(name, opcode, shape, operands, argument, attributes_text, called, root is not None, self.line)
        return instruction if opcode in OPCODES else self._asynchronous(instruction, instruction_of)

    def _asynchronous(self, short: Instruction, instruction_of: dict[str, Instruction]) -> Instruction:
        """Expands the short form of an asynchronous instruction.

        ``X-start`` becomes ``async-start`` of a new computation that runs the operation X, ``X-update`` becomes
        ``async-update``, and ``X-done`` becomes ``async-done``.
        """
        wrapped, _, suffix = short.opcode.rpartition("-")
        if wrapped not in OPCODES or suffix not in ("start", "update", "done"):
            raise InputError(f"found opcode {excerpt(short.opcode)}, expected one of HLO's")
        instruction = msgspec.structs.replace(short, opcode=f"async-{suffix}")
        if suffix != "start" or wrapped == "call":
            return instruction
        if not isinstance(short.shape, TupleShape) or len(short.shape.parts) < 2:
            raise InputError(f"expected a tuple of operands and results as shape of {short.opcode}")
        rows = [
            Instruction(
                f"parameter/{number}", "parameter", instruction_of[name].shape, (), str(number), "", (), False, self.line
            )
            for number, name in enumerate(short.operands)
        ]
        row_names = tuple(row.name for row in rows)
        root = msgspec.structs.replace(short, opcode=wrapped, shape=short.shape.parts[1], operands=row_names, is_root=True)
        body = Computation(f"{short.name}/{self.line}", (*rows, root), root, self.line)
        self.computations[body.name] = body
        start_attributes = (f"{key}={value}" for key, value in short.attributes.items() if key in _START_ONLY)
        return msgspec.structs.replace(instruction, called=(body.name,), attributes_text=", ".join(start_attributes))

    def _split_slowly(self, line: str) -> tuple[str | None, str, str, str, str, str]:
        """Splits a line that the regular expression for common lines does not match, into the groups of that expression."""
        match = _INSTRUCTION_HEAD.match(line)
        if match is None:
            raise InputError(f"found {excerpt(line)}, expected an instruction, '%name = shape opcode(operands), ...'")
        start = end = match.end()
        while end < len(line) and line[end] != ")":
            end = end_of_value(line, end, self.line)
            if line[end : end + 1] in ("}", "]"):
                raise InputError(f"found {line[end]!r} after {excerpt(line[start:end])}, expected ')'")
            if line[end : end + 1] == ",":
                end += 1
        if end >= len(line):
            raise InputError(f"found the end of the line after {excerpt(line[start:])}, expected ')'")
        rest = line[end + 1 :]
        if rest and not rest.startswith(", "):
            raise InputError(f"found {excerpt(rest)} after the operands, expected ', name=value'")
        return match[1], match[2], match[3], match[4], line[start:end], rest[2:]

    def _operands(self, text: str, instruction_of: dict[str, Instruction]) -> tuple[str, ...]:
        """Names of the operands in the text between the parentheses."""
        if not text:
            return ()
        if "/*" in text:
            text = _COMMENT.sub("", text)
        names = tuple(part.removeprefix("%") for part in text.split(", "))
        if all(name in instruction_of for name in names):
            return names
        return self._operands_with_shapes(text, instruction_of)

    def _operands_with_shapes(self, text: str, instruction_of: dict[str, Instruction]) -> tuple[str, ...]:
        """Names of operands that are written with their shapes, as in ``f32[2]{0} %name``; raises InputError for a name that is
        not defined above."""
        names = []
        position = 0
        while position < len(text):
            end = end_of_value(text, position, self.line)
            match = _OPERAND.fullmatch(text[position:end].strip())
            if match is None or match[1] not in instruction_of:
                raise self._unknown_operand(match[1] if match else text[position:end])
            names.append(match[1])
            position = end + 1
        return tuple(names)

    def _unknown_operand(self, name: str) -> InputError:
        """The error for an operand that is not defined above; it says where the name is defined, if it is."""
        defined = re.compile(rf"^\s*(?:ROOT )?%?{re.escape(name)} = ", re.MULTILINE)
        later = defined.search(self.text) if name else None
        if later is not None:
            line = self.text.count("\n", 0, later.end()) + 1
            where = "later" if line >= self.line else "in another computation"
            return InputError(f"found operand %{name}, which is defined {where}, in line {line}; expected one defined above")
        return InputError(f"found unknown operand {excerpt(name)}, expected an instruction defined above")

    def _called(self, attributes_text: str, opcode: str) -> tuple[str, ...]:
        """Names of the computations that an instruction calls, in the order of :data:`_CALL_ATTRIBUTES`."""
        expected = _CALLS.get(opcode, 0)
        by_attribute: dict[str, list[str]] = {}
        for key, value in split_attributes(attributes_text, self.line):
            if key in _CALL_ATTRIBUTES:
                by_attribute[key] = value.strip("{}").split(",")
            if expected and len(by_attribute) == expected and opcode != "conditional":
                break  # The rest may be a long backend configuration.
        called = tuple(name.strip().removeprefix("%") for key in _CALL_ATTRIBUTES for name in by_attribute.get(key, ()))
        for name in called:
            if name not in self.computations:
                raise InputError(
                    f"found a call of computation {excerpt(name)}, expected one that ends above (callees come first, no cycles)"
                )
        if len(called) < expected:
            raise InputError(f"found {opcode} with {len(called)} called computations, expected {expected}")
        return called


def _check_balance(text: str, line: int) -> None:
    """Raises InputError if brackets are not balanced, or a string is not closed."""
    # Counting brackets is a hundred times faster than scanning the text. In a valid text the counts differ only if strings
    # contain brackets.
    if text.count("{") != text.count("}") or text.count("(") != text.count(")") or text.count('"') % 2:
        for _ in split_attributes(text, line):
            pass
