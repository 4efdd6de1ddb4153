"""Front end for loop bodies as data-flow graphs, in JSON, in Graphviz DOT or in Python; lowers them to modulo scheduling.

A *data-flow graph* has the instructions of one iteration of a loop, and an edge for each value that an instruction reads. The
*machine* is an array of tiles, which are processing elements with links between them. The problem asks for a tile and a time
for each instruction. A module imports only modules that come before it in this list:

- ``balance``: makes paths equally long if delays are limited
- ``op_table``: tables of operations with meaning, latency, class and tiles
- ``graph``: data-flow graphs, and their JSON format
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
from stowplan.units import counted

__all__ = ["Dfg", "carried", "lower", "maximum", "minimum", "read_dot", "read_json", "select", "trace"]


class LoopOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for reading a loop body, and rules of the machine for it. See docs/reference/loop-bodies.md."""

    rules: Rules = Rules()
    """Variants of the machine's constraints."""
    inputs: str = "variables"
    """How loads, inputs and constants are modelled: ``variables``, ``copies`` or ``instructions``
    (:func:`~stowplan.frontends.dfg.lower.lower`)."""
    fuse: bool = False
    """Whether a multiplication that only one addition reads is fused with it."""
    fan_out: int | None = None
    """The largest number of consumers of one value, at least 2; further consumers read it from relays, which are added
    instructions that copy the value.

    None: as many consumers as the machine allows (:func:`~stowplan.frontends.dfg.lower.lower`). 0: no relays.
    """
    memory: str = "instructions"
    """How loads and stores are modelled: ``instructions``, which have a fixed latency, or ``asynchronous``, as messages over
    the machine's second network, whose latency is not fixed (:mod:`stowplan.frontends.dfg.memory`)."""
    balance: bool = False
    """Whether copies are inserted into shorter paths if limits on delays allow no schedule otherwise."""
    fixed: str | None = None
    """Path of a file with fixed instructions: ``[{"instruction": "a", "tile": 3, "time": 0, "slot": 0}]``. The slot is the time
    modulo the initiation interval. If an entry lacks the tile, the time or the slot, any value of it is allowed. None fixes no
    instructions."""
    strict: bool = False
    """Whether an operation that is in no op table (:mod:`.op_table`) is an error. Otherwise it is a generic operation, of which
    only the name and the operands are known."""
    op_table: str | None = None
    """Path of a TOML file with the meaning and cost of operations, which takes precedence over the tables of this package."""


#: The words for a rule that is either on or off, with their values.
_YES_OR_NO = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}


def parse_rules(texts: Iterable[str], fixed: str | Path | None = None, op_table: str | Path | None = None) -> LoopOptions:
    """Parses options from texts ``NAME=VALUE``, whose names are those of :data:`RULES`, and from paths of two files.

    The files are not read. If a name is given several times, the last value counts.

    Raises
    ------
    UsageError
        A name is unknown, or a value is not valid for its name.
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
    """Reads the value of the rule ``name`` from a text; raises UsageError if the rule has no such value."""
    rule = RULES[name]
    if text.lower() in rule.words:
        return rule.words[text.lower()]
    if rule.is_number and text.isdecimal() and len(text) < 19:
        return int(text)
    raise UsageError(f"rule: found {name} {text!r}, expected {values_of(name)}")


def values_of(rule: str) -> str:
    """The values that a rule may have, in words; raises KeyError if ``rule`` is not in :data:`RULES`."""
    words, is_number = RULES[rule].words, RULES[rule].is_number
    if is_number:
        return "a number, 0 or more"
    return "yes or no" if words is _YES_OR_NO else f"one of {', '.join(words)}"


def describe_rule(name: str) -> str:
    """The meaning of a rule, its values and its default, as text for lists of options; raises KeyError if ``name`` is not in
    :data:`RULES`."""
    rule = RULES[name]
    values = f" ({values_of(name)})" if rule.is_number or rule.words is _YES_OR_NO else ""
    return f"{rule.meaning}{values}. The default is {rule.default}."


def _as_they_are(*words: str) -> dict[str, str]:
    """A table in which each word stands for itself."""
    return {word: word for word in words}


class Rule(NamedTuple):
    """A rule for the option ``--set``."""

    meaning: str
    """Its meaning for lists of options, without a full stop. The text explains each of ``words``, except yes and no."""
    words: Mapping[str, Any]
    """The words that may be given, with the values for which they stand."""
    is_number: bool = False
    """Whether integers that are not negative are allowed as well."""
    default: str = "no"
    """The default, in words."""


#: The rules by their names.
RULES = {
    "max_delay": Rule(
        "Maximum number of clocks for which a value may wait at the instruction that reads it",
        {"none": None, "unlimited": None},
        is_number=True,
        default="unlimited",
    ),
    "pass_through": Rule(
        "Whether a value may take more than one link, through the tiles (processing elements) between its producer and its "
        "consumer",
        _YES_OR_NO,
    ),
    "starts": Rule(
        "Which sources must be on different tiles. A source is an instruction that reads no result of the same iteration. "
        "source: no two sources may be on one tile. flow: the plan chooses one source in each connected part of the graph, "
        "and no two of the chosen sources may be on one tile",
        _as_they_are("flow", "source"),
        default="flow",
    ),
    "siblings": Rule(
        "Which instructions must be on different tiles. consumers: any two that read the same value. "
        "consumers_and_producers: also any two whose values are read by the same instruction. none: there is no such rule",
        _as_they_are("consumers", "consumers_and_producers", "none"),
        default="consumers",
    ),
    "inputs": Rule(
        "How inputs, constants and loads that read no other value are modelled: each as one variable in the memory of a "
        "tile, on which all instructions that read it must run (variables); as a separate variable for each instruction "
        "that reads it (copies); or as an instruction (instructions)",
        _as_they_are(*get_args(Inputs)),
        default="variables",
    ),
    "fuse": Rule(
        "Whether a multiplication and an addition become one instruction if only the addition reads the product", _YES_OR_NO
    ),
    "fan_out": Rule(
        "Maximum number of instructions that may read a value directly, where 0 means no maximum; further instructions "
        "read it from added copy instructions",
        {},
        is_number=True,
        default="the number that the target allows",
    ),
    "strict": Rule("Whether an operation is an error if neither the file of op_table nor the package describes it", _YES_OR_NO),
    "memory": Rule(
        "How loads and stores are modelled: as instructions with the fixed latency that the target states (instructions), "
        "or as messages over the asynchronous fabric of the target, a network that connects all tiles and the memory but "
        "has no fixed latency (asynchronous)",
        _as_they_are(*get_args(Memory)),
        default="instructions",
    ),
    "balance": Rule(
        "Whether copy instructions are added to the shorter of two paths that end in the same instruction, if max_delay "
        "allows no schedule otherwise",
        _YES_OR_NO,
    ),
}


def is_dot(path: str | Path) -> bool:
    """Whether a file is Graphviz DOT, judging by its name."""
    return Path(path).name.lower().removesuffix(".gz").endswith((".dot", ".gv"))


def is_loop_body(path: str | Path, data: bytes | None, target: str | Path | None = None) -> bool:
    """Whether a file contains a data-flow graph.

    A JSON file with nodes and edges may also be a network of layers. Edges that are objects make it a data-flow graph, because
    those of a network are pairs of numbers. For a target that is a machine with tiles of this package, a file with nodes is
    always a data-flow graph.

    Parameters
    ----------
    path
        The file, which is recognized by its name if it is not JSON.
    data
        Contents of the file if it is JSON; otherwise None.
    target
        Name of the target, if one is named.
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
    """Whether a target is the name of a machine with tiles that comes with this package."""
    return is_machine_name(str(target))


def open_loop_body(path: str | Path, target: str | Path, options: LoopOptions) -> Problem:
    """Reads a data-flow graph from a JSON or DOT file, and makes the problem of scheduling it on a machine.

    Parameters
    ----------
    path
        The file, which is read as DOT if its name ends in ``.dot`` or ``.gv``, and as JSON otherwise.
    target
        Name of a machine of this package, or path of a target file.
    options
        How the graph is read and lowered. Instructions that its file ``fixed`` names take precedence over those that the graph
        fixes.

    Raises
    ------
    InputError
        A file cannot be read, or the graph, the machine, the op table or a fixed instruction is not valid; the message says
        what is wrong, and where.
    UsageError
        ``options.fan_out`` is 1, or ``options.inputs`` or ``options.memory`` is unknown.
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
        file_pins = read_pins(options.fixed)
        named = {pin.instruction for pin in file_pins}
        pins = (*file_pins, *(pin for pin in pins if pin.instruction not in named))
    try:
        given = {name: getattr(options, name) for name in ("rules", "inputs", "fuse", "fan_out", "memory", "balance")}
        return lower(graph, machine, pins=pins, table=table, **given)
    except InputError as error:
        is_pin = options.fixed is not None and (error.place or "").startswith("pins")
        raise error.within(options.fixed if is_pin and options.fixed is not None else path) from None


def amended(problem: Problem, changes: Mapping[str, Any]) -> Problem:
    """The problem with fixed instructions that are read from the file ``changes["fixed"]`` in place of its own.

    Raises
    ------
    InputError
        The file cannot be read or is not valid, or fixes an instruction in a way that the problem does not allow.
    KeyError
        ``changes`` names no such file.
    """
    with naming(changes["fixed"]):
        return msgspec.structs.replace(problem, pins=read_pins(changes["fixed"]))


#: Words for error messages about a file that should contain fixed instructions.
_FIXED = "a list of fixed instructions"


class _Fixed(msgspec.Struct):
    """The part of a graph file that fixes instructions."""

    fixed: tuple[Pin, ...] = ()


def _pins_within(path: str | Path) -> tuple[Pin, ...]:
    """The fixed instructions in a graph file in JSON; empty if it fixes none. Raises InputError if they are not valid."""
    return files.decode_json(files.read_bytes(path), _Fixed, _FIXED, path).fixed


def read_pins(path: str | Path) -> tuple[Pin, ...]:
    """Reads the list of fixed instructions in a JSON file.

    Raises
    ------
    InputError
        The file cannot be read or has another form; the message names the field.
    """
    return files.decode_json(files.read_bytes(path), tuple[Pin, ...], _FIXED, path)


def _open(source: Source, options: ReadOptions) -> Opened:
    """Makes the problem of a file; raises the errors of :func:`parse_rules` and :func:`open_loop_body`."""
    loop = parse_rules(options.rules, options.fixed, options.op_table)
    return Opened(open_loop_body(source.path, str(options.target), loop))


def _claims(source: Source) -> bool | None:
    """Says whether a file is certainly a data-flow graph (True) or certainly a network (False); None if neither is certain.

    The target is not considered, because the user may name several targets for several files.
    """
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
        lambda array: f"{array.tiles} tiles, instruction latency {counted(array.latency, 'clock')}",
        lambda name, array: describe_machine(name),
    ),
    claims=_claims,
)
