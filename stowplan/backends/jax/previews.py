"""What the compiler says of a policy: bytes from a preview, cycles from a full compile, both in children and kept on disk."""

from __future__ import annotations

import tempfile
from pathlib import Path

from stowplan import files
from stowplan.backends.jax.policy import Policy
from stowplan.backends.jax.training import Training
from stowplan.backends.xla import compiler
from stowplan.backends.xla.child import Compile, Done, Failed, Lower, Preview, Previewed
from stowplan.backends.xla.compiler import Compiler, not_lowered, record_of
from stowplan.backends.xla.process import CompileError, CompilingProcess
from stowplan.backends.xla.score import Scorer, scored_program
from stowplan.backends.xla.store import Compiled, Record, WorkloadStore, result_key
from stowplan.backends.xla.workload import Workload, versions
from stowplan.deadline import Deadline
from stowplan.frontends.hlo import read_module
from stowplan.hardware.targets import Target, xla_chip


class Previews:
    """Asks one child for previews of workloads; a context manager.

    Parameters
    ----------
    target
        What is compiled for.
    folder
        Where results are kept and looked for; a temporary one where None.
    compile_limit
        Seconds for one preview or compile.
    deadline
        Of all.
    """

    def __init__(self, target: Target, folder: str | Path | None, compile_limit: float, deadline: Deadline):
        self._target, self._chip = target, xla_chip(target)
        self._temporary = tempfile.TemporaryDirectory(prefix="stowplan-jax-") if folder is None else None
        self._folder = Path(self._temporary.name if self._temporary else folder or ".")
        self._compile_limit, self._deadline = compile_limit, deadline
        self._versions = versions()
        self._process: CompilingProcess | None = None
        self.made = 0
        """Previews that were made, not found."""
        self.compiles = 0
        self.processor_seconds = 0.0

    def __enter__(self) -> Previews:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.end()
        if self._temporary is not None:
            self._temporary.cleanup()

    def of(self, training: Training, policy: Policy) -> Record:
        """The preview of a program under a policy, kept or made: with bytes of slow memory, or the compiler's message.

        Results of equal identities and policies are the same.

        Raises
        ------
        CompileError
            The function cannot be rebuilt there, or the child died.
        UsageError
            A topology that libtpu does not know, or a mesh that does not fit it.
        TimeLimitError
            It took too long.
        """
        digest = files.digest({"program": training.identity, "policy": policy})
        store = WorkloadStore(self._folder, training.name, digest)
        kept = store.find(result_key({}, self._versions, self._chip.machine), preview=True)
        if kept is not None:
            return kept.record
        with store.scratch() as scratch:
            answer = training.ask(policy, lambda workload: self._asked(workload, str(scratch)))
            self.made += 1
            if isinstance(answer, Done):
                self.processor_seconds += answer.processor_seconds
            record = record_of(answer, {}, self._versions, self._chip.machine, digest)
            # A process that died may not do so again.
            if not isinstance(answer, Done) and answer.stage == "end":
                return record
            return store.keep(scratch, record, preview=True).record

    def _asked(self, workload: Workload, folder: str) -> Done | Failed:
        if self._process is None or not self._process.is_alive:
            self._process = CompilingProcess(
                compiler.CHILD_COMMAND, self._chip.accelerator, compiler.MEMORY_LIMIT, self._compile_limit, workload.name
            )
        lower = Lower(workload, self._chip.topology, self._chip.config)
        said = self._process.ask(Preview(lower, [Compile({}, folder)], 1), self._deadline)
        if not isinstance(said, Previewed):
            raise CompileError(f"{workload.name}: the compiling process ended")
        answer = said.answers[0]
        if isinstance(answer, Failed) and answer.stage in ("place", "import", "trace"):
            raise not_lowered(answer, workload.name, self._chip.machine)
        return answer

    def compiled(self, training: Training, policy: Policy) -> tuple[int, int]:
        """Cycles by the careful score, and bytes of slow memory, of a full compile.

        Raises
        ------
        CompileError
            XLA refused, or died.
        TimeLimitError
            It took too long.
        """
        result = training.ask(policy, self._compiled)
        if result.error:
            raise CompileError(f"{training.name}: {result.error}")
        return _cycles(result, self._target), result.record.hbm_bytes

    def _compiled(self, workload: Workload) -> Compiled:
        with Compiler(workload, target=self._target.name, folder=self._folder, compile_limit=self._compile_limit) as compiling:
            result = compiling.compile({}, self._deadline)
            self.compiles += compiling.compiles
            self.processor_seconds += compiling.processor_seconds
        return result


def _cycles(result: Compiled, target: Target) -> int:
    scorer = Scorer(scored_program(read_module(result.program_path)), target)
    return scorer.score(scorer.read(result)).total
