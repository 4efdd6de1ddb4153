"""Reads pickles of plain data, and refuses all others before anything is imported, constructed or called.

The reader follows the documentation of the pickle protocols 2 to 5 (PEP 307, PEP 3154; ``pickletools`` of the standard
library). It supports only the opcodes for dictionaries, lists, tuples, text, bytes, numbers, booleans and None, so that no
pickle can make it look up a name. Keys of dictionaries must be text, whose hashes an attacker cannot predict.
"""

from __future__ import annotations

import pickletools
from struct import Struct, error
from typing import Any

from stowplan.deadline import check_reading
from stowplan.errors import InputError

#: Maximum number of bytes of a decompressed pickle, maximum number of its opcodes, and maximum number of marks that are open at
#: once. A mark begins the values that are added to a container together, or that a tuple is made of.
MAX_BYTES, MAX_OPCODES, MAX_NESTING = 1 << 29, 1 << 27, 64

#: The deadline is checked each time this many opcodes have been decoded.
_OPCODES_PER_CHECK = 1 << 16

#: Maximum number of bytes of an integer.
_MAX_INTEGER_BYTES = 9


def _integer(digits: bytes) -> int:
    """A signed little-endian integer; raises InputError if it has too many bytes."""
    if len(digits) > _MAX_INTEGER_BYTES:
        raise _refused(f"an integer of {len(digits)} bytes", f"at most {_MAX_INTEGER_BYTES}")
    return int.from_bytes(digits, "little", signed=True)


def _text(data: bytes) -> str:
    """Text in UTF-8, in which pickles may have surrogates; raises ValueError for other bytes."""
    return data.decode("utf-8", "surrogatepass")


# The byte of each opcode by its name, and the name by the byte. The lines after these list the supported opcodes; opcodes that
# are decoded in the same way are in one table.
_CODE = {opcode.name: ord(opcode.code) for opcode in pickletools.opcodes}
_NAME = {code: name for name, code in _CODE.items()}
_GET1, _GET4, _PUT, _PUT1, _PUT4 = (_CODE[name] for name in ("BINGET", "LONG_BINGET", "MEMOIZE", "BINPUT", "LONG_BINPUT"))
_MARK, _DICT, _LIST, _STOP = (_CODE[name] for name in ("MARK", "EMPTY_DICT", "EMPTY_LIST", "STOP"))
_CONSTANTS = {_CODE["NONE"]: None, _CODE["NEWTRUE"]: True, _CODE["NEWFALSE"]: False, _CODE["EMPTY_TUPLE"]: ()}
#: Opcodes of numbers of a fixed size, with their formats.
_FIXED = {
    _CODE[name]: Struct(form) for name, form in {"BININT1": "B", "BININT2": "<H", "BININT": "<i", "BINFLOAT": ">d"}.items()
}
#: Opcodes of values that follow their size, with the number of bytes of the size, and a function that decodes the value.
_SIZED = {
    _CODE["LONG1"]: (1, _integer),
    _CODE["SHORT_BINUNICODE"]: (1, _text),
    _CODE["BINUNICODE"]: (4, _text),
    _CODE["SHORT_BINBYTES"]: (1, bytes),
    _CODE["BINBYTES"]: (4, bytes),
}
#: Opcodes that pop values and add them to the container below them on the stack. Each has the type of the container, and the
#: number of values, or None if these are all values above the last mark.
_ADDING = {
    _CODE["SETITEMS"]: (dict, None),
    _CODE["SETITEM"]: (dict, 2),
    _CODE["APPENDS"]: (list, None),
    _CODE["APPEND"]: (list, 1),
}
#: Opcodes that pop values and push a tuple of them, with the number of values; None for all values above the last mark.
_TUPLES = {_CODE["TUPLE"]: None, _CODE["TUPLE1"]: 1, _CODE["TUPLE2"]: 2, _CODE["TUPLE3"]: 3}
#: Opcodes that are ignored, with the number of bytes that follow: the protocol, and the size of a frame.
_SKIPPED = {_CODE["PROTO"]: 1, _CODE["FRAME"]: 8}


def is_pickle(head: bytes) -> bool:
    """Whether the first bytes of a file are those of a pickle of protocol 2 to 5."""
    return len(head) >= 2 and head[0] == _CODE["PROTO"] and 2 <= head[1] <= 5


def load(data: bytes) -> Any:
    """Decodes a pickle.

    Raises
    ------
    InputError
        An opcode makes anything but plain data, a limit of this module is exceeded, or the bytes are truncated or damaged; the
        message names the byte.
    TimeLimitError
        The time limit for reading the input is over.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: list[Any] = []
    position, push, uint32_at = 0, stack.append, Struct("<I").unpack_from
    try:
        for _ in range(0, MAX_OPCODES, _OPCODES_PER_CHECK):
            check_reading()
            # The most frequent opcodes are checked first.
            for _ in range(_OPCODES_PER_CHECK):
                opcode = data[position]
                position += 1
                if opcode == _GET4:
                    push(memo[uint32_at(data, position)[0]])
                    position += 4
                elif opcode == _GET1:
                    push(memo[data[position]])
                    position += 1
                elif opcode == _PUT:
                    memo.append(stack[-1])
                elif opcode in _SIZED:
                    width, make = _SIZED[opcode]
                    start = position + width
                    position = start + int.from_bytes(data[position:start], "little")
                    push(make(data[start:position]))
                elif opcode in _FIXED:
                    push(_FIXED[opcode].unpack_from(data, position)[0])
                    position += _FIXED[opcode].size
                elif opcode == _MARK:
                    marks.append(len(stack))
                    if len(marks) > MAX_NESTING:
                        raise _refused(f"more than {MAX_NESTING} nested containers", "fewer")
                elif opcode in _ADDING:
                    kind, count = _ADDING[opcode]
                    start = marks.pop() if count is None else len(stack) - count
                    _fill(stack[start - 1] if start > 0 else None, stack[start:], kind)
                    del stack[start:]
                elif opcode == _DICT:
                    push({})
                elif opcode == _LIST:
                    push([])
                elif opcode in _CONSTANTS:
                    push(_CONSTANTS[opcode])
                elif opcode in _TUPLES:
                    count = _TUPLES[opcode]
                    start = marks.pop() if count is None else len(stack) - count
                    if start < 0:
                        raise IndexError
                    stack[start:] = [tuple(stack[start:])]
                elif opcode in (_PUT1, _PUT4):
                    number = data[position] if opcode == _PUT1 else uint32_at(data, position)[0]
                    position += 1 if opcode == _PUT1 else 4
                    if number > len(memo):
                        raise _refused(f"a value that is stored as number {number}", f"at most {len(memo)}")
                    memo[number : number + 1] = stack[-1:]
                elif opcode in _SKIPPED:
                    position += _SKIPPED[opcode]
                elif opcode == _STOP:
                    (value,) = stack
                    return value
                else:
                    name = _NAME.get(opcode, f"0x{opcode:02x}")
                    raise _refused(f"the opcode {name}", "a pickle of plain data, which constructs and calls nothing")
        raise _refused(f"more than {MAX_OPCODES} opcodes", "fewer")
    except InputError as refusal:
        raise InputError(refusal.message, place=f"byte {position}") from None
    except (IndexError, ValueError, error, MemoryError) as damage:
        raise InputError("found a pickle that is cut off or damaged", place=f"byte {position}") from damage


def _refused(found: str, expected: str) -> InputError:
    """The error for a pickle that is not read; :func:`load` adds the position."""
    return InputError(f"found {found}, expected {expected}")


def _fill(target: list[Any] | dict[str, Any] | None, values: list[Any], kind: type) -> None:
    """Adds values to a list, or alternating keys and values to a dictionary.

    Raises
    ------
    InputError
        The target is not of this kind, or a key is not text.
    ValueError
        The last key has no value.
    """
    if target is None or type(target) is not kind:
        raise _refused(f"values without a {kind.__name__} to add them to", "plain data")
    if isinstance(target, list):
        target.extend(values)
        return
    keys = values[::2]
    if keys and set(map(type, keys)) != {str}:
        raise _refused("a key that is not text", "dictionaries whose keys are text")
    target.update(zip(keys, values[1::2], strict=True))
