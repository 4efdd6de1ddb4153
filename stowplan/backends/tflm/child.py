"""What runs in a process of its own, for the runtime may end it: a script with a folder that has a job.

The job is ``job.json``: ``models`` names files in the folder, ``plenty`` is an arena that is large enough, in bytes. The
answer, JSON on standard output, is the head of each; or, where the job has ``runs``, what became of ``source`` and ``planned``.
Each run is of a new interpreter, on the arrays ``SEED.INFERENCE.INPUT`` of ``inputs.npz``; ``kept`` are numbers of inputs that
survive an inference of ``planned``. The file ``progress`` says which model is running, on what seed, in which inference.
"""

from __future__ import annotations

import contextlib
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


def outputs(
    data: bytes, arena: int, inputs: list[dict[int, Any]], turns: int, once: list[int], progress: Path, label: str
) -> list[tuple[int, bytes]]:
    """The status of each inference, 0 where it came to its end, and then the bytes of all outputs, one after the other.

    Parameters
    ----------
    inputs
        Values of the inputs in each inference.
    turns
        Inferences at most. The inputs are taken anew from the first on until as many inferences as there are came to their end.
    once
        Inputs that are set before the first inference alone.
    """
    interpreter = _interpreter(data, arena)
    done: list[tuple[int, bytes]] = []
    for turn in range(turns):
        for number, values in inputs[turn % len(inputs)].items():
            if turn == 0 or number not in once:
                interpreter.set_input(values, number)
        progress.write_text(f"{label} {turn % len(inputs)}", encoding="utf-8")
        try:
            status = interpreter.invoke()
        except RuntimeError:
            # The status of errors, which others than kTfLiteAbort are.
            status = 1
        numbers = [] if status else _numbers(interpreter.get_output_details)
        done.append((status, b"".join(interpreter.get_output(number).tobytes() for number in numbers)))
        if sum(status == 0 for status, _ in done) == len(inputs):
            break
    progress.unlink()
    return done


def _numbers(details: Any) -> list[int]:
    """Numbers of inputs or outputs: those that the runtime has details of."""
    numbers: list[int] = []
    while True:
        try:
            details(len(numbers))
        except (ValueError, IndexError, RuntimeError):
            return numbers
        numbers.append(len(numbers))


def _run(source: bytes, planned: bytes, apart: bytes, job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What the runtime makes of a model and of its plan; in ``apart`` no tensors share bytes."""
    import numpy as np

    plenty, progress = job["plenty"], folder / "progress"
    (greedy_head, greedy_tail), (head, tail) = memory(source, plenty), memory(planned, plenty)
    greedy_arena, arena = least(source, plenty), least(planned, plenty)
    runs: list[list[dict[int, Any]]] = [[{} for _ in range(job["inferences"])] for _ in range(job["runs"])]
    with np.load(folder / "inputs.npz") as arrays:
        for name in arrays.files:
            run, at, number = map(int, name.split("."))
            runs[run][at][number] = arrays[name]
    differs, compared, ended_early, is_undefined = None, 0, 0, False
    for run, inputs in enumerate(runs):
        # The planned model in its least arena: what is written beyond its bytes shows.
        old = outputs(source, plenty, inputs, job["turns"], [], progress, f"source {run}")
        new = outputs(planned, arena, inputs, job["turns"], job["kept"], progress, f"planned {run}")
        wrong = [at for at, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]]
        if wrong:
            # A kernel may leave a part of its result as it was: then outputs depend on what was there before.
            with contextlib.suppress(RuntimeError):
                is_undefined = old != outputs(apart, plenty, inputs, job["turns"], [], progress, f"source {run}")
            differs = None if is_undefined else (run, wrong[0])
            break
        ended_early += sum(status != 0 for status, _ in old)
        compared += sum(status == 0 for status, _ in old)
    own = {"greedy_head": greedy_head, "greedy_tail": greedy_tail, "greedy_arena": greedy_arena}
    done = {"differs": differs, "compared": compared, "ended_early": ended_early, "is_undefined": is_undefined}
    return {"head": head, "tail": tail, "arena": arena, **done, **own}


def _answer(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    models = {name: (folder / name).read_bytes() for name in job["models"]}
    if job.get("runs"):
        return _run(models["source"], models["planned"], models["apart"], job, folder)
    return {name: memory(data, job["plenty"])[0] for name, data in models.items()}


if __name__ == "__main__":
    place = Path(sys.argv[1])
    try:
        said: dict[str, Any] = _answer(json.loads((place / "job.json").read_text(encoding="utf-8")), place)
    except Exception as error:
        said = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(said))
