"""A script that runs TensorFlow Lite Micro in a process of its own, because a fault of the runtime ends the process.

An *inference* is one run of a model. The script's argument is a folder with a job in the file ``job.json``. The field
``models`` of the job names files of models in the folder, and the field ``plenty`` is the size in bytes of an arena that is
certainly large enough. The script prints its answer as JSON on standard output.

Without the field ``runs``, the answer is the head of each model. The *head* of an arena has activations and scratch buffers,
and the *tail* has persistent data. With ``runs``, the script measures the models ``source`` and ``planned``, runs both, and
compares their outputs. In the third model, ``apart``, no two tensors share bytes; it is run only if the outputs differ.
``runs`` is the number of runs. Each starts with a new interpreter and has ``inferences`` inferences, whose inputs are arrays in
``inputs.npz`` with the names ``RUN.INFERENCE.INPUT`` (three numbers). ``turns`` is the largest number of inferences that are
started in a run. ``kept`` has the indices of inputs that ``planned`` preserves from one inference to the next; they are set
only once. While the script runs a model, the file ``progress`` says which model it is, in which run, and with the inputs of
which inference.
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

#: Sizes of arenas are tried in multiples of this many bytes, to which the runtime aligns tensors.
_UNIT = 16


def _interpreter(data: bytes, arena: int) -> Any:
    """Returns an interpreter of a model with an arena of this size."""
    from tflite_micro import runtime

    return runtime.Interpreter.from_bytes(data, arena_size=arena)


def memory(data: bytes, arena: int) -> tuple[int, int]:
    """Returns the sizes of head and tail in bytes, as the runtime prints them; ``arena`` is the size of the arena in bytes.

    Raises RuntimeError if the runtime does not support the model. If the arena is too small, the runtime may crash instead.
    """
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
    """Returns the size in bytes, a multiple of 16, of the smallest arena in which the model can be prepared for inferences.

    ``plenty`` is the size in bytes of an arena that is certainly large enough. Raises the errors of :func:`memory`.
    """
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
    """Runs inferences; returns for each its status, which is 0 if it was completed, and the bytes of all its outputs.

    The outputs are empty if the inference was not completed. RuntimeError is raised if the runtime does not support the model.

    Parameters
    ----------
    data, arena
        Contents of the model file, and the size of the arena in bytes.
    inputs
        [inferences] For each inference, its input arrays by the index of the input. If the runtime ends some inferences early,
        more inferences follow, which use the list again from its beginning, until as many as the list has were completed.
    turns
        The maximum number of inferences that are started.
    once
        Indices of inputs that are set only before the first inference.
    progress, label
        Before each inference, the text ``label`` and the index of its inputs are written to the file ``progress``.
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
            # The Python interface raises for each status except kTfLiteAbort. It is taken to be kTfLiteError, 1.
            status = 1
        numbers = [] if status else _numbers(interpreter.get_output_details)
        results.append((status, b"".join(interpreter.get_output(number).tobytes() for number in numbers)))
        if sum(status == 0 for status, _ in results) == len(inputs):
            break
    progress.unlink()
    return results


def _numbers(details: Any) -> list[int]:
    """Returns the indices of all inputs or outputs: the numbers from 0 on for which the function ``details`` does not fail."""
    numbers: list[int] = []
    while True:
        try:
            details(len(numbers))
        except (ValueError, IndexError, RuntimeError):
            return numbers
        numbers.append(len(numbers))


def _run(source: bytes, planned: bytes, apart: bytes, job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Measures a model and its planned version, and compares their outputs in all runs of the job.

    If outputs differ, the original model and ``apart``, in which no tensors share bytes, are compared as well. If they differ,
    the outputs of the model depend on earlier contents of memory, and no fault of the plan is reported.
    """
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
            # A kernel may leave a part of its result unwritten. Outputs then depend on the earlier contents of memory.
            with contextlib.suppress(RuntimeError):
                is_undefined = source_outputs != outputs(apart, plenty, inputs, job["turns"], [], progress, f"source {run}")
            differs = None if is_undefined else (run, wrong[0])
            break
        ended_early += sum(status != 0 for status, _ in source_outputs)
        compared += sum(status == 0 for status, _ in source_outputs)
    source_sizes = {"greedy_head": greedy_head, "greedy_tail": greedy_tail, "greedy_arena": greedy_arena}
    comparison = {"differs": differs, "compared": compared, "ended_early": ended_early, "is_undefined": is_undefined}
    return {"head": head, "tail": tail, "arena": arena, **comparison, **source_sizes}


def _answer(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Returns the answer to a job, as the module's docstring describes it."""
    models = {name: (folder / name).read_bytes() for name in job["models"]}
    if job.get("runs"):
        return _run(models["source"], models["planned"], models["apart"], job, folder)
    return {name: memory(data, job["plenty"])[0] for name, data in models.items()}


if __name__ == "__main__":
    job_folder = Path(sys.argv[1])
    try:
        answer: dict[str, Any] = _answer(json.loads((job_folder / "job.json").read_text(encoding="utf-8")), job_folder)
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer))
