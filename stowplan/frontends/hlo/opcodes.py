"""Facts about HLO, read from ``known.toml``: opcodes, attributes, memory spaces, and targets of custom calls."""

from __future__ import annotations

from stowplan.frontends import load_facts

_KNOWN = load_facts("hlo/known")
_BY_USE = {use: frozenset(names.split()) for use, names in _KNOWN["opcodes"].items()}

OPCODES: frozenset[str] = frozenset().union(*_BY_USE.values())
ELEMENTWISE = _BY_USE["elementwise"]
SAME_VALUE, SAME_NUMBER, NAMING = (_BY_USE[use] for use in ("same_value", "same_number", "naming"))
NO_ARITHMETIC = SAME_VALUE | _BY_USE["data"]

#: Opcodes that start an asynchronous operation, with the parts of their tuple that are the operands and the results.
STARTS: dict[str, tuple[int, int]] = _KNOWN["starts"]
#: All opcodes that start an asynchronous operation; the value of an all-reduce-start is the result, without a tuple.
STARTING = STARTS.keys() | {"all-reduce-start"}
#: Opcodes that end an asynchronous operation, with the parts of the start's tuple that they return.
ENDS: dict[str, list[int]] = _KNOWN["ends"]

#: Attributes of instructions and of the module's header that are read here, or that have no effect here.
ATTRIBUTES, MODULE_ATTRIBUTES = (frozenset(_KNOWN["attributes"][of].split()) for of in ("instruction", "module"))

#: What is not modelled about the time of an opcode, or of a custom call by its target; empty if everything is modelled.
UNMODELLED_TIMES: dict[str, str] = {name: row["unmodelled"] for row in _KNOWN["times"] for name in row["names"].split()}
CUSTOM_CALLS: dict[str, str] = _KNOWN["custom_calls"]
#: Targets of custom calls that return their first operand.
SAME_VALUE_CALLS = frozenset(_KNOWN["same_value"]["custom_calls"].split())

SPACES: frozenset[int] = frozenset(_KNOWN["memory_spaces"].values())
#: The memory space of the host; arrays there need no bytes on the device.
HOST: int = _KNOWN["memory_spaces"]["host"]
