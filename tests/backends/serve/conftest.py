"""A server in this process, and a client of it."""

from __future__ import annotations

import importlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from stowplan import kinds
from stowplan.backends.serve.server import Server
from stowplan.kernel.context import Options
from tests.backends.serve.rest import Problem
from tests.patience import FOREVER, HANG

#: A problem whose search does not end by itself: plans of 9 (at no cost), 7 (heuristic) and 5 (exact).
REST = msgspec.to_builtins(Problem(numbers=(5, 4, 3, 2)))

#: Two buffers that live at the same time: 96 bytes are optimal.
PACKING = {
    "format": "stowplan.packing.problem",
    "version": 1,
    "buffers": [{"id": "a", "lower": 0, "upper": 3, "size": 64}, {"id": "b", "lower": 2, "upper": 5, "size": 32}],
}


class Client:
    """Starts a server in a thread and speaks with it."""

    def __init__(self, **options: Any):
        incoming, self.outgoing = os.pipe()
        self.incoming, outgoing = os.pipe()
        self.interrupted = threading.Event()
        self._server = Server(incoming, outgoing, defaults=options.pop("defaults", Options(workers=2)), **options)
        self._lines: list[dict[str, Any]] = []

        def serve() -> None:
            try:
                self._server.run(self.interrupted)
            finally:
                os.close(outgoing)
                os.close(incoming)

        self._thread = threading.Thread(target=serve, daemon=True)
        self._thread.start()
        self._stream = os.fdopen(self.incoming, "rb")

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self.outgoing, rest) :]

    def send(self, **request: Any) -> None:
        self.write(json.dumps(request).encode() + b"\n")

    def solve(self, name: Any, problem: Any = REST, deadline_ms: float = 1000 * FOREVER, **fields: Any) -> None:
        self.send(id=name, type="solve", problem=problem, deadline_ms=deadline_ms, **fields)

    def next(self, matches: Callable[[dict[str, Any]], bool] = lambda line: True) -> dict[str, Any]:
        """The next line that matches; lines in between are kept for later."""
        for at, line in enumerate(self._lines):
            if matches(line):
                return self._lines.pop(at)
        while True:
            data = self._stream.readline()
            assert data.endswith(b"\n"), "the server has ended"
            line = json.loads(data)
            if matches(line):
                return line
            self._lines.append(line)

    def answer(self, name: Any) -> dict[str, Any]:
        """The answer to a request."""
        return self.next(lambda line: line["id"] == name and line["type"] != "progress")

    def wait_for_plan(self, name: Any, objective: int = 5) -> None:
        """Waits until a request with ``progress`` has a plan of this objective."""
        self.next(lambda line: line["id"] == name and line["type"] == "progress" and line["objective"] == objective)

    def close(self) -> None:
        """Ends the input of the server."""
        if self.outgoing >= 0:
            os.close(self.outgoing)
            self.outgoing = -1

    def rest(self) -> list[dict[str, Any]]:
        """All lines that are left, after the end of the server."""
        lines = [*self._lines, *map(json.loads, self._stream)]
        self._thread.join(HANG)
        assert not self._thread.is_alive()
        return lines

    def stop_reading(self) -> None:
        self._stream.close()

    def join(self) -> None:
        self._thread.join(HANG)
        assert not self._thread.is_alive()


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Client]]:
    """Starts servers, which end with the test."""
    monkeypatch.setitem(kinds._PLACES, "rest", "tests.backends.serve.rest:KIND")
    monkeypatch.setattr("stowplan.deadline.MIN_READING_SECONDS", HANG)
    # The tests of the suite change it, so that no deterministic run is cut short (tests/conftest.py).
    monkeypatch.setattr("stowplan.backends.serve.jobs.CEILING", importlib.import_module("stowplan.kernel.solve").CEILING)
    clients: list[Client] = []

    def make(**options: Any) -> Client:
        clients.append(Client(**options))
        return clients[-1]

    yield make
    for client in clients:
        client.interrupted.set()
        client.join()
        client.close()
        client.stop_reading()
