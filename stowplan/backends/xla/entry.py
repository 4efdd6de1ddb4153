"""The public functions for tuning: they run the tuning loop and return the best of all compilations, including XLA's default.

Tuning sets compiler options that decide which values of a program are in the *fast memory* of a chip, its small on-chip memory;
all other values are in *slow memory*. A *trial* is one compilation with some compiler options set. A *workload* is a function
with the shapes of its arguments, in a form that can be sent to another process. XLA's *default* is the compilation without such
options.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stowplan.arguments import number, whole
from stowplan.backends.xla.bandit import Budget
from stowplan.backends.xla.child import Option
from stowplan.backends.xla.compiler import COMPILE_LIMIT, Compiler
from stowplan.backends.xla.dumps import DUMPED
from stowplan.backends.xla.experience import Experience, shipped
from stowplan.backends.xla.knobs import KNOB_OPTIONS
from stowplan.backends.xla.run import Run
from stowplan.backends.xla.tuning import Tuning, TuningProgress
from stowplan.backends.xla.workload import Workload, of_function
from stowplan.deadline import Deadline
from stowplan.errors import UsageError
from stowplan.hardware.costs.signatures import LatencyTable, Predictor
from stowplan.hardware.targets import load_target

#: Default number of compilations, including XLA's default and, on some chips, one with everything in slow memory.
COMPILES = 10

#: How many cores and how many bytes of memory one compilation needs.
_CORES_OF_A_COMPILE, _MEMORY_OF_A_COMPILE = 2, 4 << 30


def tune(
    function: Callable[..., Any],
    *arguments: Any,
    donate_argnums: int | tuple[int, ...] = (),
    out_shardings: Any = None,
    **options: Any,
) -> Tuning:
    """Finds compiler options with which a JAX function needs fewer cycles, by XLA's own estimates.

    Parameters
    ----------
    function
        A function for ``jax.jit``, not jitted yet. It is sent to another process, and may be a closure.
    arguments
        Trees of arrays or ``jax.ShapeDtypeStruct``; only shapes, types and shardings matter.
    donate_argnums, out_shardings
        As in ``jax.jit``.
    options
        Keyword arguments of :func:`tune_workload`.

    Returns
    -------
    Tuning
        The ``compiler_options`` to compile with, and all trials.

    Raises
    ------
    MissingDependencyError
        Jax, libtpu or cloudpickle is not installed.
    CompileError
        The function cannot be traced, or XLA does not compile it even with default options. The message is jax's or XLA's,
        shortened.
    UsageError
        An argument is not valid, or XLA does not compile for the target.
    InputError
        There is no such target, the first result has no estimates of cycles, or it cannot be stored.
    TimeLimitError
        The time limit, or ``compile_limit``, was reached before XLA's default was compiled.
    VerificationError
        The placement of values in the default compilation breaks rules of stowplan's model of the chip, and cannot be mended.
    """
    donated = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)
    return tune_workload(of_function(function, *arguments, donated=donated, out_shardings=out_shardings), **options)


def tune_workload(
    workload: Workload,
    *,
    target: str = "tpu-v4",
    compiles: int = COMPILES,
    time_limit: float | None = None,
    folder: str | Path | None = None,
    seed: int = 0,
    jobs: int = 1,
    compile_limit: float = COMPILE_LIMIT,
    table: LatencyTable | None = None,
    predictor: Predictor | None = None,
    experience: Experience | None = None,
    compiler_options: Mapping[str, Option] | None = None,
    on_progress: Callable[[TuningProgress], None] | None = None,
    cancel: threading.Event | None = None,
) -> Tuning:
    """Finds compiler options with which a workload needs fewer cycles; :func:`tune` makes a workload of a function first.

    Parameters
    ----------
    workload
        The function to compile, with the shapes of its arguments.
    target
        Name of the target machine.
    compiles
        The largest number of compilations. Results that are found in ``folder`` count, so that a run that is continued ends
        where it would have ended.
    time_limit
        Seconds of the run; a compilation that is running when they are over is stopped. None for no limit.
    folder
        Folder for results. A run that was interrupted continues from them, and other runs of the same function use them. None
        for a temporary folder.
    seed
        Seed of all random choices.
    jobs
        How many compilations run at the same time; 0 for as many as cores and memory allow. Trials depend on this number,
        because that many are chosen together.
    compile_limit
        Seconds that one compilation may take.
    table, predictor
        Cycles of instructions that are known beforehand, None if there are none; and a model that predicts other cycles, None
        for the model that this package has for the chip.
    experience
        Results of tuning earlier programs, which decide what is tried first; None for the results that come with this package.
    compiler_options
        Your own options for every compilation; they are also part of the result. Options that tuning sets are not allowed.
    on_progress
        Is called after each compilation.
    cancel
        Once this event is set, the run ends with the best result so far, as at the time limit.

    Returns
    -------
    Tuning
        The trials in the order in which they were made, and the best options.

    Raises
    ------
    CompileError, MissingDependencyError, UsageError, InputError, TimeLimitError, VerificationError
        See :func:`tune`.
    """
    whole("{} compiles", compiles, least=1)
    whole("seed {}", seed, least=0)
    whole("{} jobs", jobs, least=0)
    number("a limit of {} s for one compile", compile_limit, least=0, or_least=False)
    if time_limit is not None:
        number("a time limit of {} s", time_limit, least=0, or_least=False)
    reserved_options = sorted({*KNOB_OPTIONS, *DUMPED} & {*(compiler_options or {})})
    if reserved_options:
        raise UsageError(f"found compiler option {reserved_options[0]}, expected another: tuning sets it")
    machine = load_target(target)
    with Compiler(
        workload,
        target=target,
        folder=folder,
        compile_limit=compile_limit,
        options=compiler_options,
    ) as compiler:
        budget = Budget(compiles, Deadline(time_limit, cancel), jobs or jobs_that_fit())
        run = Run(compiler, machine, budget, random.Random(seed), on_progress, table, predictor)
        return run.tune(shipped() if experience is None else experience)


def jobs_that_fit() -> int:
    """Returns how many compilations cores and free memory allow at the same time, at least 1.

    Each compilation keeps about two cores busy.
    """
    memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(len(os.sched_getaffinity(0)) // _CORES_OF_A_COMPILE, memory // _MEMORY_OF_A_COMPILE))
