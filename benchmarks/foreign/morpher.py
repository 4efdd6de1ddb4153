"""Morpher as a peer: its graphs, its mapper in a process of its own, and its machines as our problems.

A mapping of Morpher gives each operation a tile and a slot. Our targets leave out that values share wires and registers. So a
bound for them holds for all mappings, and :mod:`benchmarks.foreign.fabric` finds out whether a plan is a mapping of the
machine.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import msgspec

from stowplan.frontends.dfg import Dfg
from stowplan.models.modulo_scheduling.machine import Machine
from stowplan.models.modulo_scheduling.problem import GENERIC, Instruction, Operand, Pin, Problem, Rules

#: Operations that only the tiles with memory execute.
_MEMORY_OPS = ("LOADCL", "LOAD", "LOADH", "LOADB", "STORE", "STOREH", "STOREB")

#: Clocks of all operations on tiles with memory; elsewhere they take one.
_MEMORY_CLOCKS = 2

#: The tiles with memory: the first column.
_MEMORY_TILES = (0, 4, 8, 12)

#: Names of the two machines: our target, and Morpher's file in ``json_arch``.
MACHINES = {"hycube-4x4": "hycube_original.json", "adres-4x4": "stdnoc.json"}

#: Tiles that a value crosses in one clock, at most.
HOPS = {"hycube-4x4": 4, "adres-4x4": 1}


class Graph(NamedTuple):
    """A graph of Morpher: its XML, and the same as ours."""

    xml: str
    dfg: Dfg


class Mapped(NamedTuple):
    """What Morpher did in its time."""

    ii: int | None
    seconds: float
    places: dict[str, tuple[int, int]]
    """Tile and slot of each instruction, by id."""


def read(path: Path) -> Graph:
    """A graph from Morpher's XML.

    Ours has the values alone. Outputs of the type ``PS``, and the parents of recurrences through memory, order operations and
    carry no value; Morpher obeys these orders, too. A bound without them holds for Morpher all the more.
    """
    text = path.read_text()
    operands: dict[str, list[Operand]] = {}
    ops: dict[str, str] = {}
    nodes = re.findall(r'<Node idx="(\d+)".*?</Node>', text, re.DOTALL)
    for idx, body in zip(nodes, re.findall(r"<Node .*?</Node>", text, re.DOTALL), strict=True):
        operands.setdefault(idx, [])
        op = re.search(r"<OP>(\w+)</OP>", body)
        assert op is not None, idx
        ops[idx] = op[1]
        for output in re.findall(r"<Output [^>]*>", body):
            fields = dict(re.findall(r'(\w+)="([^"]*)"', output))
            if fields.get("type") != "PS":
                operand = Operand(instruction=idx, distance=int(fields["nextiter"]))
                operands.setdefault(fields["idx"], []).append(operand)
    instructions = tuple(
        Instruction(
            id=idx,
            op=GENERIC + ops[idx].lower(),
            source_op=ops[idx],
            operands=tuple(operands[idx]),
            latency=_MEMORY_CLOCKS if ops[idx] in _MEMORY_OPS else None,
            tiles=_MEMORY_TILES if ops[idx] in _MEMORY_OPS else None,
        )
        for idx in nodes
    )
    # Where predicates do not say whether they are negated, Morpher reads a number that it has not written.
    text = re.sub(r'(<Output (?![^>]*NPB=)[^>]*)type="P"', r'\1NPB="0" type="P"', text)
    name = path.parent.name if path.parent.name not in ("polybench", "applications") else path.stem
    return Graph(text, Dfg(name, instructions))


def target_problem(graph: Dfg, machine: Machine) -> Problem:
    """The problem on our target. Other operations keep away from the tiles with memory, where they would take longer."""
    others = tuple(sorted({*range(machine.tiles)} - {*(machine.memory_tiles or ())}))
    instructions = tuple(
        instruction if instruction.tiles is not None else msgspec.structs.replace(instruction, tiles=others)
        for instruction in graph.instructions
    )
    return _problem(graph, instructions, machine)


def relaxed_problem(graph: Dfg, machine: Machine) -> Problem:
    """The problem on our target whose plans include all mappings of the machine: other operations may be on all tiles."""
    return _problem(graph, graph.instructions, machine)


def fixed_problem(problem: Problem, mapped: Mapped) -> Problem:
    """A problem with the tiles and slots of a mapping: its plans are that mapping."""
    assert mapped.ii is not None
    pins = tuple(Pin(instruction=name, tile=tile, slot=slot) for name, (tile, slot) in mapped.places.items())
    machine = msgspec.structs.replace(problem.machine, spoke_depth=mapped.ii)
    free = tuple(
        instruction if instruction.latency is not None else msgspec.structs.replace(instruction, tiles=None)
        for instruction in problem.instructions
    )
    return msgspec.structs.replace(problem, machine=machine, instructions=free, pins=pins)


def _problem(graph: Dfg, instructions: tuple[Instruction, ...], machine: Machine) -> Problem:
    open_machine = msgspec.structs.replace(machine, operations=(), memory_tiles=msgspec.UNSET)
    rules = Rules(siblings="none")
    return Problem(instructions=instructions, machine=open_machine, rules=rules, name=graph.name)


def run(mapper: Path, architecture: Path, graph: Graph, hops: int, seconds: float) -> Mapped:
    """Let Morpher's PathFinder map a graph, in so many seconds of the processor at most."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "loop.xml").write_text(graph.xml)
        (folder / "arch.json").write_text(architecture.read_text())
        command = [str(mapper), "-d", "loop.xml", "-j", "arch.json", "-h", str(hops)]
        spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        limit = f'ulimit -t {int(seconds) + 1}; exec "$@"'
        done = subprocess.run(["bash", "-c", limit, "bash", *command], cwd=folder, capture_output=True)
        took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - spent
        found = re.search(rb"Map Success with II = (\d+)", done.stdout)
        if found is None:
            return Mapped(None, took, {})
        (mapping,) = folder.glob("*mapping.json")
        return Mapped(int(found[1]), took, _places(json.loads(mapping.read_text())))


def _places(mapping: dict[str, object]) -> dict[str, tuple[int, int]]:
    """Tile and slot of each operation of a mapping."""
    places: dict[str, tuple[int, int]] = {}
    tiles = mapping["CGRA_INS"]["SUBMODS"]  # type: ignore[index]
    for name, tile in tiles.items():
        where = re.search(r"X(\d+)\|?_Y\|?(\d+)", name)
        assert where is not None, name
        for unit in tile.get("SUBMODS", {}).values():
            for slot, operation in unit.get("OP_INFO", {}).items():
                places[str(operation["id"])] = (4 * int(where[2]) + int(where[1]), int(slot))
    return places
