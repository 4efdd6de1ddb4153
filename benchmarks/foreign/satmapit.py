"""SAT-MapIt as a peer: its loops, its mapper in a process of its own, and mappings in both directions."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from stowplan.frontends.dfg import Dfg
from stowplan.models.modulo_scheduling.assemble import make_plan
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import GENERIC, Instruction, Operand, Problem
from stowplan.models.modulo_scheduling.structure import Structure

#: The last commit of SAT-MapIt that has the graphs of its loops, made by its LLVM pass.
GRAPHS_AT = "79fd3e5"

_DRIVER = Path(__file__).with_name("satmapit_driver.py")


class Peer(NamedTuple):
    """Where SAT-MapIt Lite is, and the Python that has z3."""

    checkout: Path
    python: Path


class Mapped(NamedTuple):
    """What SAT-MapIt did in its time."""

    ii: int | None
    """The initiation interval of its mapping; None if it found none in time."""
    at_least: int
    """The least interval that it had not given up; 0 if it had tried none."""
    seconds: float
    """Seconds of the processor, without the start of Python."""
    places: dict[str, tuple[int, int]]
    """Tile and time of each instruction, by id."""


def loops(checkout: Path) -> list[Dfg]:
    """The loops that SAT-MapIt's repository has, without constants and values from outside; ascending by size."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", checkout, *arguments], check=True, capture_output=True, text=True).stdout

    found = []
    for path in git("ls-tree", "-r", "--name-only", GRAPHS_AT, "benchmarks").splitlines():
        if path.endswith("_edges") and "_live" not in path:
            nodes = path.removesuffix("edges") + "nodes"
            found.append(
                _read(
                    Path(path).name.removesuffix("_edges"),
                    git("show", f"{GRAPHS_AT}:{nodes}"),
                    git("show", f"{GRAPHS_AT}:{path}"),
                )
            )
    return sorted(found, key=lambda graph: (len(graph.instructions), graph.name))


def _read(name: str, nodes: str, edges: str) -> Dfg:
    """A graph from SAT-MapIt's text: lines ``ID OPERATION ...`` and lines ``SOURCE TARGET DISTANCE LATENCY``."""
    operands: dict[str, list[Operand]] = {line.split()[0]: [] for line in nodes.splitlines()}
    ops = {line.split()[0]: line.split()[1] for line in nodes.splitlines()}
    for line in edges.splitlines():
        source, target, distance, _ = line.split()
        operands[target].append(Operand(instruction=source, distance=int(distance)))
    instructions = (Instruction(id=node, op=GENERIC + ops[node], operands=tuple(read)) for node, read in operands.items())
    return Dfg(name, tuple(instructions))


def why_not(problem: Problem) -> str | None:
    """Why SAT-MapIt cannot read a loop as it is meant; None if it can."""
    if any(edge.distance > 1 for edge in problem.edges):
        return "a distance above 1, which it takes for 1"
    used = {end for edge in problem.edges if edge.source != edge.target for end in edge[:2]}
    return None if len(used) == len(problem.instructions) else "an instruction without values, which its files leave out"


def run(peer: Peer, problem: Problem, seconds: float) -> Mapped:
    """Let SAT-MapIt map a loop to the torus of the problem's machine, in so many seconds of the processor at most.

    Values of an instruction to itself are left out: SAT-MapIt has no mapping for them, and on its machine they are always
    possible.
    """
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(_command(peer, problem, Path(folder), seconds), capture_output=True, text=True)
    if done.returncode == -signal.SIGXCPU:
        return Mapped(None, _tried(done.stderr), seconds, {})
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    answer = json.loads(done.stdout.splitlines()[-1])
    ids = [instruction.id for instruction in problem.instructions]
    places = {ids[int(node)]: (tile, at) for node, (tile, at) in answer["places"].items()}
    return Mapped(answer["ii"], answer["ii"], answer["seconds"], places)


def accepts(peer: Peer, problem: Problem, plan: Plan) -> bool:
    """Whether SAT-MapIt's constraints accept a plan."""
    with tempfile.TemporaryDirectory() as folder:
        mapping = Path(folder) / "mapping.json"
        places = dict(enumerate(zip(plan.tiles, plan.times, strict=True)))
        mapping.write_text(json.dumps({"ii": plan.ii, "places": places}))
        command = [*_command(peer, problem, Path(folder), 0), str(mapping)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return bool(json.loads(done.stdout.splitlines()[-1])["ok"])


def plan_of(problem: Problem, mapped: Mapped) -> Plan | None:
    """The plan of a mapping; None if our rules refuse it."""
    assert mapped.ii is not None
    places = [mapped.places[instruction.id] for instruction in problem.instructions]
    tiles, times = ([place[which] for place in places] for which in (0, 1))
    try:
        return make_plan(Structure(problem), mapped.ii, tiles, times)
    except ValueError:  # no link between two of the tiles
        return None


def _command(peer: Peer, problem: Problem, folder: Path, seconds: float) -> list[str]:
    """The command that runs SAT-MapIt's code on a loop, whose values it writes into a folder; 0 seconds are any number."""
    edges = folder / "edges"
    values = {(edge.source, edge.target, edge.distance) for edge in problem.edges if edge.source != edge.target}
    edges.write_text("".join(f"{source} {target} {distance} 1\n" for source, target, distance in sorted(values)))
    machine = problem.machine
    return [str(part) for part in (peer.python, _DRIVER, seconds, peer.checkout, edges, machine.rows, machine.columns)]


def _tried(said: str) -> int:
    """The last interval that SAT-MapIt said it tries."""
    return max((int(ii) for ii in re.findall(r"^II: (\d+)$", said, re.MULTILINE)), default=0)
