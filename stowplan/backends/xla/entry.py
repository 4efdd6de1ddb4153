"""The loop: compile, learn what the compile cost, set knobs again; the best of all compiles, XLA's default among them."""

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

#: Compiles unless told otherwise, the default and all in slow memory included.
COMPILES = 10

#: What one compile takes: cores, and bytes of memory.
_CORES_OF_A_COMPILE, _MEMORY_OF_A_COMPILE = 2, 4 << 30


def tune(
    function: Callable[..., Any],
    *arguments: Any,
    donate_argnums: int | tuple[int, ...] = (),
    out_shardings: Any = None,
    **options: Any,
) -> Tuning:
    """Options with which XLA compiles a JAX function to fewer cycles, by its own estimates.

    Parameters
    ----------
    function
        What ``jax.jit`` takes; not yet jitted. It is sent to a compiling process, and may be a closure.
    arguments
        Trees of arrays or ``jax.ShapeDtypeStruct``; only shapes, types and shardings count.
    donate_argnums, out_shardings
        As in ``jax.jit``.
    options
        As of :func:`tune_workload`.

    Returns
    -------
    Tuning
        With ``compiler_options`` to compile with, and all trials.

    Raises
    ------
    MissingDependencyError
        Without jax or libtpu.
    CompileError
        A function that does not trace, or that XLA does not compile even by default; the message is its own, shortened.
    UsageError
        Arguments that make no sense.
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
    """Tune a workload; :func:`tune` with the arguments said by name.

    Parameters
    ----------
    workload
        What is compiled.
    target
        Machine, by the name of its target.
    compiles
        Compiles at most, those found in ``folder`` included, so that a run taken up again ends where it would have ended.
    time_limit
        Seconds; a compile under way when they are over is ended. None for no limit.
    folder
        Where results are kept: a run that was interrupted goes on there, and other runs of the function share them.
    seed
        Of what is chosen by lot.
    jobs
        Compiles side by side; 0 for as many as cores and memory allow. Trials depend on it: the next ones are chosen together.
    compile_limit
        Seconds that one compile may take.
    table, predictor
        Cycles known beforehand, and what predicts others; nothing, and the one of the package, where None.
    experience
        What earlier programs taught; what comes with the package where None.
    compiler_options
        The user's own, kept in every compile and in the result.
    on_progress
        Called after each compile.
    cancel
        Setting this event returns the best so far.

    Returns
    -------
    Tuning
        Trials in the order they were made.

    Raises
    ------
    CompileError, MissingDependencyError, UsageError
        As of :func:`tune`.
    TimeLimitError
        The time was over before XLA's default was compiled.
    """
    whole("{} compiles", compiles, least=1)
    whole("seed {}", seed, least=0)
    whole("{} jobs", jobs, least=0)
    number("a limit of {} s for one compile", compile_limit, least=0, or_least=False)
    if time_limit is not None:
        number("a time limit of {} s", time_limit, least=0, or_least=False)
    taken = sorted({*KNOB_OPTIONS, *DUMPED} & {*(compiler_options or {})})
    if taken:
        raise UsageError(f"found compiler option {taken[0]}, expected another: tuning sets it")
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
    """Compiles that cores and free memory allow side by side: each keeps some two cores busy."""
    memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(len(os.sched_getaffinity(0)) // _CORES_OF_A_COMPILE, memory // _MEMORY_OF_A_COMPILE))
