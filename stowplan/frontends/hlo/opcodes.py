"""Facts about HLO, read from ``known.toml``: opcodes, attributes, memory spaces, and targets of custom calls."""

from __future__ import annotations

from stowplan.frontends import load_facts

_KNOWN = load_facts("hlo/known")
_BY_USE = {use: frozenset(names.split()) for use, names in _KNOWN["opcodes"].items()}

#: All opcodes that are known.
OPCODES: frozenset[str] = frozenset().union(*_BY_USE.values())
#: Opcodes that compute each element of the result from the elements of the operands at the same index.
ELEMENTWISE = _BY_USE["elementwise"]
#: Opcodes whose result is their first operand; opcodes whose result has as many elements as their first operand; and opcodes
#: that are no steps, because they only name data, end an asynchronous operation, or run computations.
SAME_VALUE, SAME_NUMBER, NAMING = (_BY_USE[use] for use in ("same_value", "same_number", "naming"))
#: Opcodes that compute nothing.
NO_ARITHMETIC = SAME_VALUE | _BY_USE["data"]

#: Opcodes that start an asynchronous operation, with the numbers of the parts of their tuple that are operands and results.
STARTS: dict[str, tuple[int, int]] = _KNOWN["starts"]
#: All opcodes that start an asynchronous operation; the value of an all-reduce-start is the result, without a tuple.
STARTING = STARTS.keys() | {"all-reduce-start"}
#: Opcodes that end an asynchronous operation, with the numbers of the parts of the start's tuple that they return.
ENDS: dict[str, list[int]] = _KNOWN["ends"]

#: Attributes of instructions and of the module's header that this package reads, or that make no difference to a problem.
ATTRIBUTES, MODULE_ATTRIBUTES = (frozenset(_KNOWN["attributes"][of].split()) for of in ("instruction", "module"))

#: Texts that say which part of the time of an opcode is not modelled, and the same for a custom call by its target. The text is
#: empty for a custom call that is modelled completely.
UNMODELLED_TIMES: dict[str, str] = {name: row["unmodelled"] for row in _KNOWN["times"] for name in row["names"].split()}
CUSTOM_CALLS: dict[str, str] = _KNOWN["custom_calls"]
#: Targets of custom calls that return their first operand.
SAME_VALUE_CALLS = frozenset(_KNOWN["same_value"]["custom_calls"].split())

#: Numbers of the memory spaces that are known.
SPACES: frozenset[int] = frozenset(_KNOWN["memory_spaces"].values())
#: The memory space of the host; arrays there need no bytes on the device.
HOST: int = _KNOWN["memory_spaces"]["host"]
