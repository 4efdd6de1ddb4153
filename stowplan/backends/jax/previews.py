"""Measures a training step with a policy: bytes by a preview, and cycles by a full compilation.

A policy of ``jax.checkpoint`` says which values of the forward pass are saved for the backward pass. A *preview* is a
compilation that ends once XLA has assigned memory. Previews and compilations run in child processes, and their results are
stored on disk. A *workload* is a function with the shapes of its arguments, in a form that can be sent to a child process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from stowplan import files
from stowplan.backends.jax.policy import Policy
from stowplan.backends.jax.training import Training
from stowplan.backends.xla import compiler
from stowplan.backends.xla.child import Compile, Done, Lower, Preview, Previewed
from stowplan.backends.xla.compiler import Compiler, not_lowered, record_of
from stowplan.backends.xla.process import CompileError, CompilingProcess
from stowplan.backends.xla.score import Scorer, scored_program
from stowplan.backends.xla.store import Compiled, Record, WorkloadStore, result_key
from stowplan.backends.xla.workload import versions
from stowplan.deadline import Deadline, read_within
from stowplan.frontends.hlo import read_module
from stowplan.hardware.targets import Target, xla_chip

T = TypeVar("T")


class Previews:
    """Makes previews in one child process, and full compilations in others. It is a context manager.

    Parameters
    ----------
    target
        The machine for which programs are compiled; one of the TPUs.
    folder
        Folder in which results are stored and looked up; None for a temporary one.
    compile_limit
        Seconds for one preview or compilation.
    deadline
        Deadline of all previews and compilations.

    Raises
    ------
    UsageError
        XLA does not compile for the target.
    MissingDependencyError
        Jax or libtpu is not installed.
    """

    def __init__(self, target: Target, folder: str | Path | None, compile_limit: float, deadline: Deadline):
        self._target, self._chip = target, xla_chip(target)
        self._temporary = tempfile.TemporaryDirectory(prefix="stowplan-jax-") if folder is None else None
        self._folder = Path(self._temporary.name if self._temporary else folder or ".")
        self._compile_limit, self.deadline = compile_limit, deadline
        self._versions = versions()
        self._process: CompilingProcess | None = None
        self.previews_made = 0
        """How many previews were made rather than found in the folder."""
        self.compiles = 0
        """How many full compilations were made rather than found in the folder."""
        self.processor_seconds = 0.0
        """CPU time of previews and compilations, in seconds."""
        self.resident_bytes = 0
        """The largest peak resident memory of a preview's process, in bytes."""

    def __enter__(self) -> Previews:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.end()
        if self._temporary is not None:
            self._temporary.cleanup()

    def stored(self, training: Training, policy: Policy) -> Record | None:
        """Returns the stored preview of a training step with a policy; None if there is none. Raises InputError for an unusable
        folder."""
        result = self._store(training, policy).find(result_key({}, self._versions, self._chip.machine), preview=True)
        return None if result is None else result.record

    def make(self, training: Training, policy: Policy) -> Record:
        """Make a preview of a training step with a policy.

        The record has the peak in bytes of slow memory, or the compiler's message if it refused.

        Raises
        ------
        CompileError
            The function cannot be rebuilt in the child process, or that process died or used too much memory.
        UsageError
            One of these:

            - the function cannot be sent to the child process
            - libtpu, the compiler for TPUs, does not know the target's arrangement of chips
            - the mesh of the arguments does not fit this arrangement
        TimeLimitError
            The preview took longer than ``compile_limit``, or than the deadline allows.
        MissingDependencyError
            Cloudpickle is not installed.
        InputError
            The result cannot be stored.
        """
        store = self._store(training, policy)
        with store.scratch() as scratch:
            workload = self.within(lambda: training.workload(policy))
            answer = self._request(Lower(workload, self._chip.topology, self._chip.config), Compile({}, str(scratch)))
            self.previews_made += 1
            if isinstance(answer, Done):
                self.processor_seconds += answer.processor_seconds
                self.resident_bytes = max(self.resident_bytes, answer.resident_bytes)
            elif answer.stage in ("place", "import", "trace"):
                raise not_lowered(answer, training.name, self._chip.machine)
            record = record_of(answer, {}, self._versions, self._chip.machine, _digest(training, policy))
            # A process that ended without an answer may succeed the next time, so that its result is not stored.
            if not isinstance(answer, Done) and answer.stage == "end":
                return record
            return store.keep(scratch, record, preview=True).record

    def _store(self, training: Training, policy: Policy) -> WorkloadStore:
        """Returns the stored results of a training step with a policy."""
        return WorkloadStore(self._folder, training.name, _digest(training, policy))

    def _request(self, lower: Lower, compile_request: Compile) -> Any:
        """Have the child process make one preview; returns its answer. Raises CompileError if the process ends."""
        if self._process is None or not self._process.is_alive:
            self._process = CompilingProcess(
                compiler.CHILD_COMMAND, self._chip.accelerator, compiler.MEMORY_LIMIT, self._compile_limit, lower.workload.name
            )
        answer = self._process.ask(Preview(lower, [compile_request], 1), self.deadline)
        if not isinstance(answer, Previewed):
            raise CompileError(f"{lower.workload.name}: the compiling process ended")
        return answer.answers[0]

    def compiled(self, training: Training, policy: Policy) -> tuple[int, int]:
        """Compile a training step with a policy in full, unless the result is stored.

        Returns
        -------
        (int, int)
            The cycles of one step, as :class:`~stowplan.backends.xla.score.Score` computes them from XLA's estimates; and the
            peak in bytes of slow memory, 0 if the compiler did not report it.

        Raises
        ------
        CompileError
            XLA refused, or its process died.
        TimeLimitError
            The compilation took longer than ``compile_limit``, or than the deadline allows.
        InputError
            The compiled module has no estimates of cycles, or the result cannot be stored.
        """
        workload = self.within(lambda: training.workload(policy))
        with Compiler(workload, target=self._target.name, folder=self._folder, compile_limit=self._compile_limit) as compiling:
            result = compiling.compile({}, self.deadline)
            self.compiles += compiling.compiles
            self.processor_seconds += compiling.processor_seconds
            if result.error:
                raise CompileError(f"{training.name}: {result.error}")
            # Reading a large module takes seconds as well, so the deadline applies to it.
            return self.within(lambda: _cycles(result, self._target)), result.record.hbm_bytes

    def within(self, run: Callable[[], T]) -> T:
        """Call a function within the deadline and return its result.

        If the deadline has a time, the function runs in another thread, with the mesh that is current in this one.

        Raises
        ------
        TimeLimitError
            The function takes longer; its thread continues in the background.
        """
        import jax

        if self.deadline.seconds is None:
            return run()
        mesh = jax.sharding.get_abstract_mesh()

        def with_mesh() -> T:
            with jax.sharding.use_abstract_mesh(mesh):
                return run()

        return read_within(self.deadline.seconds, with_mesh, self.deadline.began)


def _digest(training: Training, policy: Policy) -> str:
    """Returns a hash of a training step and a policy, under which results are stored."""
    return files.digest({"program": training.identity, "policy": policy})


def _cycles(result: Compiled, target: Target) -> int:
    """Returns the cycles of a compiled step, from XLA's estimates (:class:`~stowplan.backends.xla.score.Score`)."""
    scorer = Scorer(scored_program(read_module(result.program_path)), target)
    return scorer.score(scorer.read(result)).total
