"""Runs SAT-MapIt Lite's own code on one graph, or lets its constraints judge a mapping: a script for its own environment.

    python satmapit_driver.py SECONDS CHECKOUT EDGES ROWS COLUMNS [MAPPING]

The script ends by the signal SIGXCPU after so many seconds of the processor, if they are not 0. EDGES has a line ``SOURCE
TARGET DISTANCE LATENCY`` for each value, as SAT-MapIt writes it. With MAPPING, a JSON file with ``ii`` and, by node, ``[tile,
time]``, the mapper gets the clocks of this mapping in place of its own windows of clocks, and its constraints one literal for
each node; whether they can be met is the answer. The last line on standard output is JSON.
"""

import contextlib
import importlib
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any


class Judged(Exception):  # noqa: N818
    """Ends the mapper once its constraints have judged a mapping."""


def mapper(checkout: str, edges: str, rows: int, columns: int) -> Any:
    """SAT-MapIt's mapper for a graph."""
    sys.path.insert(0, str(Path(checkout) / "Mapper"))
    parser = importlib.import_module("Parser").Parser()
    parser.parseEdgeFile(edges)
    return importlib.import_module("Mapper").Mapper(rows, columns, parser.getDFG(), "loop")


def judge(peer: Any, mapping: dict[str, Any]) -> bool:
    """Whether SAT-MapIt's constraints accept a mapping."""
    z3 = importlib.import_module("z3")
    ii, places = mapping["ii"], {int(node): place for node, place in mapping["places"].items()}
    first = min(at for _, at in places.values())

    def windows() -> None:
        peer.scheduleLen = max(at for _, at in places.values()) - first
        peer.MS = {at: [] for at in range(peer.scheduleLen + 1)}
        for node, (_, at) in places.items():
            peer.MS[at - first].append(node)

    inner = peer.addConstraint3

    def constraints(*arguments: Any) -> bool:
        if not inner(*arguments):
            raise Judged("false")
        for node, (tile, at) in places.items():
            turn, slot = divmod(at - first, ii)
            peer.s.add(z3.Bool(f"v_{node},{tile},{slot},{turn}"))
        raise Judged(json.dumps(peer.s.check() == z3.sat))

    peer.getStartingII = lambda: ii
    peer.generateMS = windows
    peer.addConstraint3 = constraints
    try:
        peer.findMapping({})
    except Judged as verdict:
        return bool(json.loads(str(verdict)))
    raise AssertionError("the mapper ended without a verdict")


def main() -> None:
    seconds, checkout, edges, rows, columns, *rest = sys.argv[1:]
    # The mapper prints what it does: the intervals that it tries are read from standard error.
    with contextlib.redirect_stdout(sys.stderr):
        peer = mapper(checkout, edges, int(rows), int(columns))
        began = time.process_time()
        if float(seconds):
            limit = int(began + float(seconds)) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 10))
        if rest:
            answer: dict[str, Any] = {"ok": judge(peer, json.loads(Path(rest[0]).read_text()))}
        else:
            peer.findMapping({})
            tiles = {node: tile for row in peer.kernel.values() for tile, node in row.items()}
            times = {node: at for at, nodes in peer.schedule.items() for node in nodes}
            places = {node: [tile, times[node]] for node, tile in tiles.items()}
            answer = {"ii": peer.II, "places": places, "seconds": time.process_time() - began}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
