"""Loop bodies as graphs: read from JSON or Graphviz DOT, or written in Python; and lowered to problems on a machine.

Each file knows only those before it:

- ``balance``: paths of equal length, where delays are limited
- ``op_table``: tables of operations: meaning, latency, class and tiles
- ``graph``: the data-flow graph between a file and a problem
- ``dot``: data-flow graphs in Graphviz DOT, as other CGRA tools write them
- ``memory``: loads and stores over the asynchronous fabric
- ``lower``: the problem of a graph on a machine
- ``expression``: loop bodies written in Python
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec

from stowplan import files
from stowplan.errors import InputError, UsageError, naming
from stowplan.frontends.dfg.dot import read_dot
from stowplan.frontends.dfg.expression import carried, maximum, minimum, select, trace
from stowplan.frontends.dfg.graph import Dfg, Reading, read_json
from stowplan.frontends.dfg.lower import Inputs, Memory, lower
from stowplan.frontends.dfg.op_table import load_op_table
from stowplan.frontends.formats import InputFormat, Opened, Source, TargetFamily
from stowplan.frontends.network.layer_json import is_layer_file
from stowplan.frontends.options import ReadOptions
from stowplan.hardware.se.machines import describe_machine, is_machine_name, load_machine, machine_names
from stowplan.models.modulo_scheduling.problem import Pin, Problem, Rules

__all__ = ["Dfg", "carried", "lower", "maximum", "minimum", "read_dot", "read_json", "select", "trace"]


class LoopOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to read a loop body, and the machine's rules for it. See docs/reference/loop-bodies.md."""

    rules: Rules = Rules()
    inputs: str = "variables"
    """``variables``, ``copies`` or ``instructions``: what becomes of loads, inputs and constants."""
    fuse: bool = False
    """Whether a multiplication that only one addition reads becomes one instruction with it."""
    fan_out: int | None = None
    """Consumers of one value at most, others read from relays; None for what the machine can do, 0 for no relays."""
    memory: str = "instructions"
    """``instructions`` or ``asynchronous``: what loads and stores are."""
    balance: bool = False
    """Whether shorter ways get instructions that pass values on, where limits on delays allow no times otherwise."""
    fixed: str | None = None
    """Path of a file with instructions that are fixed: ``[{"instruction": "a", "tile": 3, "time": 0, "slot": 0}]``."""
    strict: bool = False
    """Whether an op that no op table knows is an error, not a generic operation."""
    op_table: str | None = None
    """Path of a TOML file that says what ops mean and cost, over the package's own tables."""


_YES_OR_NO = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}


def parse_rules(texts: Iterable[str], fixed: str | Path | None = None, op_table: str | Path | None = None) -> LoopOptions:
    """Options from ``NAME=VALUE`` texts, and paths.

    Names are those of :data:`RULES`.

    Raises
    ------
    UsageError
        An unknown name, or a value that the name does not take.
    """
    rules: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in RULES:
            raise UsageError(f"rule: found {text!r}, expected NAME=VALUE with one of {', '.join(RULES)}")
        (rules if name in Rules.__struct_fields__ else others)[name] = _value(name, value)
    paths = {"fixed": fixed, "op_table": op_table}
    others |= {name: str(path) for name, path in paths.items() if path is not None}
    return LoopOptions(rules=Rules(**rules), **others)


def _value(name: str, text: str) -> Any:
    rule = RULES[name]
    if text.lower() in rule.words:
        return rule.words[text.lower()]
    if rule.is_number and text.isdecimal() and len(text) < 19:
        return int(text)
    raise UsageError(f"rule: found {name} {text!r}, expected {values_of(name)}")


def values_of(rule: str) -> str:
    """What a rule takes, in words."""
    words, is_number = RULES[rule].words, RULES[rule].is_number
    if is_number:
        return "a number, 0 or more"
    return "yes or no" if words is _YES_OR_NO else f"one of {', '.join(words)}"


def _as_they_are(*words: str) -> dict[str, str]:
    return {word: word for word in words}


class Rule(NamedTuple):
    """A rule that ``--set`` takes."""

    meaning: str
    """For lists of options, without a full stop."""
    words: Mapping[str, Any]
    """Values by the words for them."""
    is_number: bool = False
    """Whether it also takes whole numbers."""


#: The rules by their names.
RULES = {
    "max_delay": Rule("Clocks that a value may wait at its consumer", {"none": None, "unlimited": None}, is_number=True),
    "pass_through": Rule("Whether values may be routed over more than one link", _YES_OR_NO),
    "starts": Rule(
        "Instructions that start on a tile of their own, one source of each flow or every source",
        _as_they_are("flow", "source"),
    ),
    "siblings": Rule("Instructions that may not share a tile", _as_they_are("consumers", "consumers_and_producers", "none")),
    "inputs": Rule("What loads, inputs and constants become", _as_they_are(*get_args(Inputs))),
    "fuse": Rule("Whether a multiplication that only one addition reads is fused with it", _YES_OR_NO),
    "fan_out": Rule("Consumers that a value may have before copy instructions are added; 0 for any number", {}, is_number=True),
    "strict": Rule("Whether unknown ops are errors", _YES_OR_NO),
    "memory": Rule(
        "Whether loads and stores are instructions of a fixed latency or use the asynchronous fabric",
        _as_they_are(*get_args(Memory)),
    ),
    "balance": Rule("Whether copy instructions lengthen the shorter paths if limits on delays allow no schedule", _YES_OR_NO),
}


def is_dot(path: str | Path) -> bool:
    """Whether a file is Graphviz DOT, by its name."""
    return Path(path).name.lower().removesuffix(".gz").endswith((".dot", ".gv"))


def is_loop_body(path: str | Path, data: bytes | None, target: str | Path | None = None) -> bool:
    """Whether a file holds a data-flow graph. ``data`` is its content where it is JSON, None elsewhere.

    Networks have nodes and edges as well: their edges are pairs of numbers and their nodes have sizes. Where that leaves it
    open, the target decides.
    """
    if data is None:
        return is_dot(path)
    if files.peek_format(data) is not None:
        return False
    try:
        content = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return target is not None and is_array(target) and data.lstrip()[:1] == b"{"
    if not isinstance(content, dict) or "nodes" not in content:
        return False
    if target is not None and is_array(target):
        return True
    edges = content.get("edges", content.get("links"))
    return isinstance(edges, list) and bool(edges) and all(isinstance(edge, dict) for edge in edges)


def is_array(target: str | Path) -> bool:
    """Whether a target is the name of a machine with tiles."""
    return is_machine_name(str(target))


def open_loop_body(path: str | Path, target: str | Path, options: LoopOptions) -> Problem:
    """Problem of scheduling a graph on a machine.

    Raises
    ------
    InputError
        What is wrong with the graph, the machine, the op table or the fixed instructions, and where.
    """
    machine = load_machine(target)
    table = load_op_table(options.op_table)
    table.check(machine.tiles)
    reading = Reading(table, options.strict)
    pins: tuple[Pin, ...] = ()
    if is_dot(path):
        graph = read_dot(path, reading)
    else:
        graph = read_json(path, reading)
        pins = _pins_within(path)
    if options.fixed is not None:
        # What is fixed by hand comes before what the graph says.
        own = read_pins(options.fixed)
        named = {pin.instruction for pin in own}
        pins = (*own, *(pin for pin in pins if pin.instruction not in named))
    try:
        given = {name: getattr(options, name) for name in ("rules", "inputs", "fuse", "fan_out", "memory", "balance")}
        return lower(graph, machine, pins=pins, table=table, **given)
    except InputError as error:
        is_pin = options.fixed is not None and (error.place or "").startswith("pins")
        raise error.within(options.fixed if is_pin and options.fixed is not None else path) from None


def amended(problem: Problem, changes: Mapping[str, Any]) -> Problem:
    """A problem with the instructions of the file ``fixed`` in place of its own fixed ones; its rules stay."""
    with naming(changes["fixed"]):
        return msgspec.structs.replace(problem, pins=read_pins(changes["fixed"]))


_FIXED = "a list of fixed instructions"


class _Fixed(msgspec.Struct):
    fixed: tuple[Pin, ...] = ()


def _pins_within(path: str | Path) -> tuple[Pin, ...]:
    """The ``fixed`` of a graph file."""
    return files.decode_json(files.read_bytes(path), _Fixed, _FIXED, path).fixed


def read_pins(path: str | Path) -> tuple[Pin, ...]:
    """Fixed instructions of a JSON file: a list of them; raises :class:`~stowplan.errors.InputError` naming file and place."""
    return files.decode_json(files.read_bytes(path), tuple[Pin, ...], _FIXED, path)


def _open(source: Source, options: ReadOptions) -> Opened:
    loop = parse_rules(options.rules, options.fixed, options.op_table)
    return Opened(open_loop_body(source.path, str(options.target), loop))


def _claims(source: Source) -> bool | None:
    """With a machine named, whatever has nodes is taken for a data-flow graph, so for networks that is not enough."""
    if is_loop_body(source.path, source.data):
        return True
    return False if source.data is not None and is_layer_file(source.data) else None


FORMAT = InputFormat(
    what="a data-flow graph",
    suffixes=(".json", ".dot", ".gv"),
    accepts=lambda source: frozenset({"target", "rules", "fixed", "op_table"}),
    matches=lambda source: is_loop_body(source.path, source.data, source.target),
    open=_open,
    targets=TargetFamily(
        "data-flow graphs",
        "modulo scheduling",
        "se",
        "a tile and a time for each instruction",
        load_machine,
        machine_names,
        lambda array: f"{array.tiles} tiles, latency {array.latency}",
        lambda name, array: describe_machine(name),
    ),
    claims=_claims,
)
