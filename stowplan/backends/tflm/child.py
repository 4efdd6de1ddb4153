"""What runs in a process of its own, for the runtime may end it: a script with a folder that has a job.

The job is ``job.json``: ``models`` names files in the folder, ``plenty`` is an arena that is large enough, in bytes. The
answer, JSON on standard output, is the head of each; or, with ``seeds`` and ``inferences``, what became of ``source`` and
``planned``. ``kept`` are numbers of inputs that survive a run of ``planned``.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

#: Arenas are multiples of this many bytes.
_UNIT = 16


def _interpreter(data: bytes, arena: int) -> Any:
    from tflite_micro import runtime

    return runtime.Interpreter.from_bytes(data, arena_size=arena)


def memory(data: bytes, arena: int) -> tuple[int, int]:
    """Bytes of head and tail; raises RuntimeError where the runtime does not take the model."""
    interpreter = _interpreter(data, arena)
    # The runtime writes to the descriptor itself.
    kept = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            interpreter.print_allocations()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        said.seek(0)
        text = said.read().decode(errors="replace")
    head, tail = (re.search(rf"allocation {part} (\d+) bytes", text) for part in ("head", "tail"))
    if head is None or tail is None:
        raise RuntimeError("the runtime does not say what it takes")
    return int(head[1]), int(tail[1])


def _fits(data: bytes, arena: int) -> bool:
    """Whether an arena is large enough; asked in a process of its own, for one that is not may end it."""
    child = os.fork()
    if child == 0:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 2)
        try:
            _interpreter(data, arena)
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def least(data: bytes, plenty: int) -> int:
    """Bytes of the least arena, a multiple of 16."""
    head, tail = memory(data, plenty)
    low = -(-(head + tail) // _UNIT)
    step = 1
    high = low
    # Most often head and tail are all; temporaries while operators are prepared may need more.
    while not _fits(data, high * _UNIT):
        low, high, step = high + 1, high + step, 2 * step
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _fits(data, middle * _UNIT) else (middle + 1, high)
    return high * _UNIT


def outputs(data: bytes, arena: int, seed: int, inferences: int, kept: list[int], *, survives: bool) -> list[bytes]:
    """Bytes of all outputs, one inference after the other, on inputs drawn at random.

    Kept inputs are the same in all of them; where they survive a run, they are set but once.
    """
    import numpy as np

    interpreter, chance = _interpreter(data, arena), np.random.default_rng(seed)
    outputs: list[bytes] = []
    once: dict[int, Any] = {}
    for _ in range(inferences):
        for number in _numbers(interpreter.get_input_details):
            if number in once:
                if not survives:
                    interpreter.set_input(once[number], number)
                continue
            details = interpreter.get_input_details(number)
            kind, shape = np.dtype(details["dtype"]), tuple(details["shape"])
            if kind.kind in "iu":
                values = chance.integers(np.iinfo(kind).min, np.iinfo(kind).max, shape, kind, endpoint=True)
            else:
                values = chance.standard_normal(shape).astype(kind) if kind.kind == "f" else chance.random(shape) < 0.5
            interpreter.set_input(values, number)
            if number in kept:
                once[number] = values
        interpreter.invoke()
        outputs.append(
            b"".join(interpreter.get_output(number).tobytes() for number in _numbers(interpreter.get_output_details))
        )
    return outputs


def _numbers(details: Any) -> list[int]:
    """Numbers of inputs or outputs: those that the runtime has details of."""
    numbers: list[int] = []
    while True:
        try:
            details(len(numbers))
        except (ValueError, IndexError, RuntimeError):
            return numbers
        numbers.append(len(numbers))


def _run(source: bytes, planned: bytes, job: dict[str, Any]) -> dict[str, Any]:
    """What the runtime makes of a model and of its plan."""
    plenty = job["plenty"]
    (greedy_head, greedy_tail), (head, tail) = memory(source, plenty), memory(planned, plenty)
    greedy_arena, arena = least(source, plenty), least(planned, plenty)
    differs = None
    for seed in range(job["seeds"]):
        # The planned model in its least arena: what is written beyond its bytes shows.
        told = seed, job["inferences"], job["kept"]
        pair = [outputs(source, plenty, *told, survives=False), outputs(planned, arena, *told, survives=True)]
        wrong = [at for at, (old, new) in enumerate(zip(*pair, strict=True)) if old != new]
        if wrong:
            differs = seed, wrong[0]
            break
    own = {"greedy_head": greedy_head, "greedy_tail": greedy_tail, "greedy_arena": greedy_arena}
    return {"head": head, "tail": tail, "arena": arena, "differs": differs, **own}


def _answer(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    models = {name: (folder / name).read_bytes() for name in job["models"]}
    if job["seeds"]:
        return _run(models["source"], models["planned"], job)
    return {name: memory(data, job["plenty"])[0] for name, data in models.items()}


if __name__ == "__main__":
    place = Path(sys.argv[1])
    try:
        said: dict[str, Any] = _answer(json.loads((place / "job.json").read_text(encoding="utf-8")), place)
    except Exception as error:
        said = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(said))
