"""Reads pickles that hold plain data, and refuses all else before anything is imported, made or called.

Written from the documented opcodes of the protocols 2 to 5 (PEP 307, PEP 3154; ``pickletools`` of the standard library). Only
those are known that make dictionaries, lists, tuples, text, bytes, numbers, truth values and None: there is no code here that
could look up a name. Keys of dictionaries are text, whose hashes nobody can foretell.
"""

from __future__ import annotations

import pickletools
import struct
from typing import Any

from stowplan.deadline import check_reading
from stowplan.errors import InputError

#: Bytes of a pickle, unpacked; opcodes; and containers open at once.
MAX_BYTES, MAX_OPCODES, MAX_NESTING = 1 << 29, 1 << 27, 64

#: Opcodes between two looks at the clock.
_SLICE = 1 << 16

_NAMES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}

# Those of the opcodes that are known, by what they do.
_GET1, _GET4, _PUT, _PUT1, _PUT4 = ord("h"), ord("j"), 0x94, ord("q"), ord("r")
_INT1, _INT2, _INT4, _LONG, _FLOAT = ord("K"), ord("M"), ord("J"), 0x8A, ord("G")
_TEXT1, _TEXT4, _BYTES1, _BYTES4 = 0x8C, ord("X"), ord("C"), ord("B")
_MARK, _DICT, _LIST, _TUPLE, _STOP = ord("("), ord("}"), ord("]"), ord("t"), ord(".")
_SET_ITEMS, _SET_ITEM, _APPENDS, _APPEND = ord("u"), ord("s"), ord("e"), ord("a")
_PROTOCOL, _FRAME = 0x80, 0x95
_CONSTANTS = {ord("N"): None, 0x88: True, 0x89: False, ord(")"): ()}
_SMALL_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}

#: Bytes of the longest whole number.
_LONGEST = 9

_TEXT_ONLY = {str}

_unsigned2, _unsigned4, _signed4, _float8 = (struct.Struct(form).unpack_from for form in ("<H", "<I", "<i", ">d"))


def is_pickle(head: bytes) -> bool:
    """Whether a file begins like a pickle of protocol 2 or later."""
    return len(head) >= 2 and head[0] == _PROTOCOL and 2 <= head[1] <= 5


def load(data: bytes) -> Any:
    """The value of a pickle.

    Raises
    ------
    InputError
        An opcode that makes anything but plain data, a limit that is exceeded, or bytes that are cut off or damaged; names the
        byte.
    """
    reader = _Reader(data)
    try:
        return reader.read()
    except (IndexError, struct.error, UnicodeDecodeError, MemoryError) as error:
        raise InputError("found a pickle that is cut off or damaged", place=reader.place) from error


class _Reader:
    """The machine that runs opcodes: a stack, marks on it, and numbered values that may come again."""

    def __init__(self, data: bytes):
        self._data = data
        self._position = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._numbered: list[Any] = []

    @property
    def place(self) -> str:
        return f"byte {self._position}"

    def read(self) -> Any:
        for _ in range(0, MAX_OPCODES, _SLICE):
            check_reading()
            if self._run():
                if len(self._stack) != 1:
                    raise IndexError
                return self._stack[0]
        raise InputError(f"found more than {MAX_OPCODES} opcodes, expected fewer", place=self.place)

    def _run(self) -> bool:
        """Run some opcodes; whether the last one was the end. The order is that of how often they come."""
        data, stack, marks, numbered = self._data, self._stack, self._marks, self._numbered
        position, push = self._position, stack.append
        for _ in range(_SLICE):
            opcode = data[position]
            position += 1
            if opcode == _GET1:
                push(numbered[data[position]])
                position += 1
            elif opcode == _GET4:
                push(numbered[_unsigned4(data, position)[0]])
                position += 4
            elif opcode == _PUT:
                numbered.append(stack[-1])
            elif opcode == _LONG:
                size = data[position]
                position += 1 + size
                if size > _LONGEST:
                    raise self._refused(f"a number of {size} bytes", f"at most {_LONGEST}", position)
                push(int.from_bytes(data[position - size : position], "little", signed=True))
            elif opcode == _INT1:
                push(data[position])
                position += 1
            elif opcode == _TEXT1:
                size = data[position]
                position += 1 + size
                push(data[position - size : position].decode("utf-8", "surrogatepass"))
            elif opcode == _MARK:
                marks.append(len(stack))
                if len(marks) > MAX_NESTING:
                    raise self._refused(f"more than {MAX_NESTING} containers within each other", "fewer", position)
            elif opcode == _SET_ITEMS:
                start = marks.pop()
                self._update(stack[start - 1], stack[start::2], stack[start + 1 :: 2], position)
                del stack[start:]
            elif opcode == _DICT:
                push({})
            elif opcode == _INT4:
                push(_signed4(data, position)[0])
                position += 4
            elif opcode == _INT2:
                push(_unsigned2(data, position)[0])
                position += 2
            elif opcode == _STOP:
                self._position = position
                return True
            else:
                position = self._run_rare(opcode, position)
        self._position = position
        return False

    def _run_rare(self, opcode: int, position: int) -> int:
        """Run an opcode of those that come seldom; the position after it."""
        data, stack, marks = self._data, self._stack, self._marks
        if opcode == _LIST:
            stack.append([])
        elif opcode == _APPENDS:
            start = marks.pop()
            self._extend(stack[start - 1], stack[start:], position)
            del stack[start:]
        elif opcode == _APPEND:
            self._extend(stack[-2], stack[-1:], position)
            stack.pop()
        elif opcode == _SET_ITEM:
            self._update(stack[-3], stack[-2:-1], stack[-1:], position)
            del stack[-2:]
        elif opcode in _CONSTANTS:
            stack.append(_CONSTANTS[opcode])
        elif opcode == _TUPLE or opcode in _SMALL_TUPLES:
            start = marks.pop() if opcode == _TUPLE else len(stack) - _SMALL_TUPLES[opcode]
            if start < 0:
                raise IndexError
            stack[start:] = [tuple(stack[start:])]
        elif opcode == _FLOAT:
            stack.append(_float8(data, position)[0])
            position += 8
        elif opcode in (_TEXT4, _BYTES1, _BYTES4):
            start = position + (1 if opcode == _BYTES1 else 4)
            position = start + int.from_bytes(data[position:start], "little")
            if position > len(data):
                raise IndexError
            value = data[start:position]
            stack.append(value.decode("utf-8", "surrogatepass") if opcode == _TEXT4 else value)
        elif opcode in (_PUT1, _PUT4):
            width = 1 if opcode == _PUT1 else 4
            number = int.from_bytes(data[position : position + width], "little")
            position += width
            if number > len(self._numbered):
                raise self._refused(f"the number {number} for a value", f"at most {len(self._numbered)}", position)
            self._numbered[number : number + 1] = stack[-1:]
        elif opcode == _PROTOCOL:
            position += 1
        elif opcode == _FRAME:
            position += 8
        else:
            name = _NAMES.get(opcode, f"0x{opcode:02x}")
            raise self._refused(f"the opcode {name}", "a pickle of plain data, which makes and calls nothing", position)
        return position

    def _update(self, target: Any, keys: list[Any], values: list[Any], position: int) -> None:
        if type(target) is not dict or len(keys) != len(values):
            raise self._refused("entries outside of a dictionary", "plain data", position)
        if not keys:
            return
        if set(map(type, keys)) != _TEXT_ONLY:
            raise self._refused("a key that is no text", "dictionaries by text", position)
        target.update(zip(keys, values, strict=True))

    def _extend(self, target: Any, values: list[Any], position: int) -> None:
        if type(target) is not list:
            raise self._refused("entries outside of a list", "plain data", position)
        target.extend(values)

    def _refused(self, found: str, expected: str, position: int) -> InputError:
        return InputError(f"found {found}, expected {expected}", place=f"byte {position}")
