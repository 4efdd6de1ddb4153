"""What is known of HLO, read from ``known.toml``: opcodes, attributes, memory spaces, targets of custom calls."""

from __future__ import annotations

from stowplan.frontends import known

_KNOWN = known("hlo/known")
_BY_USE = {use: frozenset(names.split()) for use, names in _KNOWN["opcodes"].items()}

OPCODES: frozenset[str] = frozenset().union(*_BY_USE.values())
ELEMENTWISE = _BY_USE["elementwise"]
SAME_VALUE, SAME_NUMBER, NAMING = (_BY_USE[use] for use in ("same_value", "same_number", "naming"))
NO_ARITHMETIC = SAME_VALUE | _BY_USE["data"]

#: Starts of asynchronous operations: parts of their tuple that are their operands and their results.
STARTS: dict[str, tuple[int, int]] = _KNOWN["starts"]
#: Opcodes that start one; that of an all-reduce has no tuple, its value is the result.
STARTING = STARTS.keys() | {"all-reduce-start"}
#: Their ends: parts of that tuple that they pass on.
ENDS: dict[str, list[int]] = _KNOWN["ends"]

#: Attributes of instructions and of the module's header that are read, or that nothing here depends on.
ATTRIBUTES, MODULE_ATTRIBUTES = (frozenset(_KNOWN["attributes"][of].split()) for of in ("instruction", "module"))

#: What is not modelled of the time of an opcode, and of a custom call by its target ("" for nothing).
UNMODELLED_TIMES: dict[str, str] = {name: row["unmodelled"] for row in _KNOWN["times"] for name in row["names"].split()}
CUSTOM_CALLS: dict[str, str] = _KNOWN["custom_calls"]
#: Targets of custom calls whose result is their first operand.
SAME_VALUE_CALLS = frozenset(_KNOWN["same_value"]["custom_calls"].split())

SPACES: frozenset[int] = frozenset(_KNOWN["memory_spaces"].values())
#: The host's memory space: what stands there takes no bytes of the device.
HOST: int = _KNOWN["memory_spaces"]["host"]
