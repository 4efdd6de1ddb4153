"""A script that runs TensorFlow Lite Micro in a process of its own, because the runtime may end its process.

Its argument is a folder with a job in ``job.json``. In the job, ``models`` names files in the folder, and ``plenty`` is the
size of a sufficiently large arena in bytes. The script prints its answer as JSON on standard output: the head of each model,
or, if the job has ``runs``, measurements of the models ``source`` and ``planned`` and a comparison of their outputs. Each run
uses a new interpreter and the arrays ``SEED.INFERENCE.INPUT`` of ``inputs.npz``; ``kept`` has the indices of inputs that
``planned`` preserves. While the script runs a model, the file ``progress`` says which one, with which seed, and in which
inference.
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
    """An interpreter of a model with an arena of this size."""
    from tflite_micro import runtime

    return runtime.Interpreter.from_bytes(data, arena_size=arena)


def memory(data: bytes, arena: int) -> tuple[int, int]:
    """Bytes of head and tail; raises RuntimeError if the runtime does not support the model."""
    interpreter = _interpreter(data, arena)
    # The runtime prints to file descriptor 2 directly, so the descriptor is redirected, not ``sys.stderr``.
    saved_stderr = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            interpreter.print_allocations()
        finally:
            os.dup2(saved_stderr, 2)
            os.close(saved_stderr)
        log.seek(0)
        text = log.read().decode(errors="replace")
    head, tail = (re.search(rf"allocation {part} (\d+) bytes", text) for part in ("head", "tail"))
    if head is None or tail is None:
        raise RuntimeError("the runtime does not say what it takes")
    return int(head[1]), int(tail[1])


def _fits(data: bytes, arena: int) -> bool:
    """Whether an arena is large enough; it is tried in a forked process, because the runtime may crash if it is too small."""
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
    """Bytes of the smallest arena that works, a multiple of 16."""
    head, tail = memory(data, plenty)
    low = -(-(head + tail) // _UNIT)
    step = 1
    high = low
    # In most cases head and tail are enough, but temporary memory during preparation may need more.
    while not _fits(data, high * _UNIT):
        low, high, step = high + 1, high + step, 2 * step
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _fits(data, middle * _UNIT) else (middle + 1, high)
    return high * _UNIT


def outputs(
    data: bytes, arena: int, inputs: list[dict[int, Any]], turns: int, once: list[int], progress: Path, label: str
) -> list[tuple[int, bytes]]:
    """Runs inferences; returns the status of each, which is 0 if it was completed, and the bytes of all its outputs.

    Parameters
    ----------
    inputs
        [inferences] Values by the index of the input. If the runtime ends inferences early, the inputs are used again from the
        first one on, until this many inferences were completed.
    turns
        The largest number of inferences.
    once
        Indices of inputs that are set only before the first inference.
    progress, label
        A file, and the text that is written to it before the index of each inference.
    """
    interpreter = _interpreter(data, arena)
    results: list[tuple[int, bytes]] = []
    for turn in range(turns):
        for number, values in inputs[turn % len(inputs)].items():
            if turn == 0 or number not in once:
                interpreter.set_input(values, number)
        progress.write_text(f"{label} {turn % len(inputs)}", encoding="utf-8")
        try:
            status = interpreter.invoke()
        except RuntimeError:
            # Any error but kTfLiteAbort raises; its status is kTfLiteError, 1.
            status = 1
        numbers = [] if status else _numbers(interpreter.get_output_details)
        results.append((status, b"".join(interpreter.get_output(number).tobytes() for number in numbers)))
        if sum(status == 0 for status, _ in results) == len(inputs):
            break
    progress.unlink()
    return results


def _numbers(details: Any) -> list[int]:
    """Indices of the inputs or outputs of which the runtime has details."""
    numbers: list[int] = []
    while True:
        try:
            details(len(numbers))
        except (ValueError, IndexError, RuntimeError):
            return numbers
        numbers.append(len(numbers))


def _run(source: bytes, planned: bytes, apart: bytes, job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Measures a model and its planned version and compares their outputs; in the model ``apart`` no tensors share bytes."""
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
        # The planned model runs in its smallest arena, so that a write beyond its bytes has an effect.
        source_outputs = outputs(source, plenty, inputs, job["turns"], [], progress, f"source {run}")
        planned_outputs = outputs(planned, arena, inputs, job["turns"], job["kept"], progress, f"planned {run}")
        wrong = [at for at, pair in enumerate(zip(source_outputs, planned_outputs, strict=False)) if pair[0] != pair[1]]
        if wrong:
            # A kernel may leave a part of its result unwritten; outputs then depend on what was in memory before.
            with contextlib.suppress(RuntimeError):
                is_undefined = source_outputs != outputs(apart, plenty, inputs, job["turns"], [], progress, f"source {run}")
            differs = None if is_undefined else (run, wrong[0])
            break
        ended_early += sum(status != 0 for status, _ in source_outputs)
        compared += sum(status == 0 for status, _ in source_outputs)
    of_source = {"greedy_head": greedy_head, "greedy_tail": greedy_tail, "greedy_arena": greedy_arena}
    comparison = {"differs": differs, "compared": compared, "ended_early": ended_early, "is_undefined": is_undefined}
    return {"head": head, "tail": tail, "arena": arena, **comparison, **of_source}


def _answer(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The answer to a job, as the module's docstring describes it."""
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
