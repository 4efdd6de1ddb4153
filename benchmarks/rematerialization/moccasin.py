"""Beside Moccasin's own code on the graphs that it published: added cost at 0.9 and 0.8 of the peak, in the same time.

    python -m benchmarks.rematerialization.moccasin FOLDER [--code FOLDER --python PYTHON] [--seconds 30] -o results.json

FOLDER has the graphs (``data`` of github.com/haoming-codes/moccasin). ``--code`` is a copy of that repository: its
``moccasin.cp.remat`` runs as its ``main.py`` calls it, in a process of its own, by an interpreter with its requirements
(OR-Tools 9.8, networkx of at most 3.3). Without it only ours runs. Results are kept in the file, and what is there is not run
again. Neither graphs nor code are part of this project.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

import stowplan
from benchmarks.lib.tables import table
from stowplan.models.rematerialization.problem import Op, Problem, Tensor
from stowplan.models.rematerialization.structure import build

FACTORS = (0.9, 0.8)

#: Their code, called as their main.py does. It imports a package for PyTorch that this call does not need.
THEIRS = """
import json, sys, types
sys.path.insert(0, sys.argv[1] + "/src")
for name in ("rockmate", "rockmate.def_op"):
    sys.modules[name] = types.ModuleType(name)
for name in ("RunOp", "DelOp", "OpSchedule"):
    setattr(sys.modules["rockmate.def_op"], name, object)
import networkx as nx
from moccasin import cp
with open(sys.argv[2]) as file:
    data = json.load(file)
layered = "random_layered" in sys.argv[2]
for link in data["links"]:
    if layered:
        link["source"], link["target"] = link.pop("0"), link.pop("1")
for node in data["nodes"]:
    if layered:
        node["id"] = node["name"]
G = nx.node_link_graph(data, multigraph=False, directed=True)
if layered:
    for _, node in G.nodes(data=True):
        node["cost_ram"], node["cost_cpu"] = node.pop("out_cost"), node.pop("duration")
order = G.graph["order"] if "order" in G.graph else list(nx.topological_sort(G))
seconds = float(sys.argv[4])
timeout = seconds if len(G) >= 500 else seconds / 2
found = cp.remat(G=G, B=int(sys.argv[3]), C=2, timeout=timeout, topo_order=order, log_dir=sys.argv[5])
print("RESULT", json.dumps({key: found[key] for key in ("status", "obj_val", "mem_schedule", "cpu_schedule") if key in found}))
"""


def networkx(path: Path) -> Problem:
    """A graph as Moccasin and networkx write it, in the order that Moccasin takes."""
    found = json.loads(path.read_text())
    is_layered = found["graph"].get("name", "").startswith("random_layered")
    names = [node["name" if is_layered else "id"] for node in found["nodes"]]
    index = {name: at for at, name in enumerate(names)}
    ends = ("0", "1") if is_layered else ("source", "target")
    edges = [(index[each[ends[0]]], index[each[ends[1]]]) for each in found["links"]]
    before: dict[int, set[int]] = {at: set() for at in range(len(names))}
    for one, other in edges:
        before[other].add(one)
    given = found["graph"].get("order")
    order = kahn(len(names), edges) if given is None else [index[each] for each in given]
    place = {op: at for at, op in enumerate(order)}
    size, cost = ("out_cost", "duration") if is_layered else ("cost_ram", "cost_cpu")
    assert all(place[one] < place[other] for one, other in edges)
    return Problem(
        name=found["graph"].get("name", path.stem),
        tensors=tuple(Tensor(id=f"{names[op]}", size=found["nodes"][op][size]) for op in order),
        ops=tuple(
            Op(
                id=f"{names[op]}",
                reads=tuple(sorted(place[each] for each in before[op])),
                writes=(at,),
                cost=found["nodes"][op][cost],
            )
            for at, op in enumerate(order)
        ),
    )


def kahn(count: int, edges: list[tuple[int, int]]) -> list[int]:
    """The order of networkx's ``topological_sort``: generation by generation."""
    following: list[list[int]] = [[] for _ in range(count)]
    waits = [0] * count
    for one, other in edges:
        following[one].append(other)
        waits[other] += 1
    order, now = [], [at for at in range(count) if not waits[at]]
    while now:
        after = []
        for op in now:
            order.append(op)
            for each in following[op]:
                waits[each] -= 1
                if not waits[each]:
                    after.append(each)
        now = after
    return order


def theirs(python: Path, code: Path, path: Path, limit: int, seconds: float) -> dict[str, Any]:
    """What their code finds."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [code, path, limit, seconds, folder]
        began = time.monotonic()
        command = [str(python), "-c", THEIRS, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    found = re.search(r"^RESULT (.*)$", done.stdout, re.MULTILINE)
    if found is None:
        raise RuntimeError(done.stderr[-2000:])
    return {**json.loads(found[1]), "seconds": time.monotonic() - began}


def ours(path: Path, limit: int, seconds: float) -> dict[str, Any]:
    """What we find, and prove."""
    problem = msgspec.structs.replace(networkx(path), limit=limit)
    began = time.monotonic()
    result = stowplan.solve(problem, time_limit=seconds)
    took = time.monotonic() - began
    return {"status": result.status, "added": result.objective, "bound": result.bound, "seconds": took}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--code", type=Path)
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--skip-ours", action="store_true")
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    known: dict[str, Any] = json.loads(given.output.read_text()) if given.output.exists() else {}
    for path in sorted(given.folder.glob("*.json"), key=lambda path: path.stat().st_size):
        problem = networkx(path)
        structure = build(problem)
        peak, once = structure.ordering.peak(structure.order), sum(structure.cost)
        for factor in FACTORS:
            limit = math.ceil(peak * factor)
            row = known.setdefault(f"{path.stem} {factor}", {"ops": structure.ops, "once": once, "limit": limit})
            if given.code is not None and "theirs" not in row:
                row["theirs"] = theirs(given.python, given.code, path, limit, given.seconds)
            if not given.skip_ours and "ours" not in row:
                row["ours"] = ours(path, limit, given.seconds)
            given.output.write_text(json.dumps(known, indent=1))
    print(table(list(map(_row, known.items())), ["graph", "ops", "limit", "theirs", "ours", "bound"]))


def _row(item: tuple[str, dict[str, Any]]) -> list[object]:
    name, row = item

    def percent(cost: int | None) -> str:
        return "none" if cost is None else f"{100 * cost / row['once']:.2f}"

    their, our = row.get("theirs", {}), row.get("ours", {})
    cost = their.get("cpu_schedule")
    text = percent(None if cost is None else cost - row["once"])
    if their and cost is None:
        text = "none fits" if their["status"] == "INFEASIBLE" else "none"
    name, factor = name.rsplit(" ", 1)
    bound = "none fits" if our.get("status") == "infeasible" else percent(our.get("bound"))
    return [name.split("(")[0].split("_w")[0].strip() + (" train" if "train" in name else ""), row["ops"], factor, text,
            percent(our.get("added")), bound]  # fmt: skip


if __name__ == "__main__":
    main()
