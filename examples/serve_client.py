"""Sends several requests to ``stowplan serve`` at once, with the standard library alone (guide: docs/guide/serve.md).

python examples/serve_client.py stowplan serve --jobs 2
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any


class Server:
    """A server and its answers; as a context manager, it ends the server once all requests are answered."""

    def __init__(self, command: Sequence[str]):
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._numbers, self._answers = itertools.count(), dict[int, Future[dict[str, Any]]]()
        self._lock, self._reader = threading.Lock(), threading.Thread(target=self._read)
        self._reader.start()

    def ask(self, **request: Any) -> Future[dict[str, Any]]:
        """Sends a request; the future has its answer."""
        with self._lock:
            number = next(self._numbers)
            answer = self._answers[number] = Future()
            self._process.stdin.write(json.dumps({"id": number, **request}).encode() + b"\n")
            self._process.stdin.flush()
        return answer

    def _read(self) -> None:
        """Reads answers until the server ends."""
        for line in self._process.stdout:
            answer = json.loads(line)
            if answer["type"] != "progress" and answer["id"] is not None:
                self._answers.pop(answer["id"]).set_result(answer)
        for waiting in self._answers.values():
            waiting.set_exception(EOFError("the server has ended"))

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.stdin.close()
        self._reader.join()
        self._process.wait()


if __name__ == "__main__":
    with Server(sys.argv[1:] or ["stowplan", "serve", "--jobs", "2"]) as server:
        inputs = {"examples/data/buffers.csv": {}, "examples/data/saxpy.dfg.json": {"target": "se"}}
        answers = {
            path: server.ask(type="solve", problem=path, options=options, deadline_ms=10_000)
            for path, options in inputs.items()
        }
        for path, answer in answers.items():
            said = answer.result()
            if said["type"] == "error":
                raise SystemExit(f"{path}: {said['message']}")
            result = said["result"]
            print(f"{path}: {result['objective']} {result['unit']}, bound {result['bound']}, {result['status']}")
