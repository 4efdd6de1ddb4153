"""What the commands ``stowplan train AGENT`` have in common. Each agent has a module with a subclass of :class:`Training`.

The class of an agent declares its options, how problems are read, and what is reported. :class:`Training` handles limits,
resuming, files, progress, interrupts and exit codes. A *trainer* is the object that trains an agent, and whose state a
checkpoint stores. A *demonstration* is a plan of another origin from which the agent learns before training begins.

A module imports only modules that come before it in this list:

- ``egrl``: ``stowplan train egrl``
- ``muzero``: ``stowplan train muzero``
- ``ppo``: ``stowplan train ppo``
"""

from __future__ import annotations

import dataclasses
import inspect
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, TypeVar, get_type_hints

import typer

from stowplan import cli, files, kinds
from stowplan.arguments import number
from stowplan.cli import INTERRUPTED, event_on_interrupt
from stowplan.cli.options import Quiet, option, with_options, with_parameters
from stowplan.cli.output import LinePrinter, note, open_with_notes, say, say_json
from stowplan.cli.outputs import check_folder, check_outputs
from stowplan.deadline import Deadline, limit_after, read_within
from stowplan.errors import InputError, MissingDependencyError, UsageError, to_install
from stowplan.frontends.options import ReadOptions

if TYPE_CHECKING:
    from stowplan.learned_guidance.training.run import BaseTrainer

T = TypeVar("T", bound="BaseTrainer[Any, Any]")

#: Part of the time limit that all searches for demonstrations together may take, and the minimum number of seconds for each.
DEMONSTRATION_SHARE, MIN_DEMONSTRATION_SECONDS = 0.4, 0.2

#: Seconds between two printed lines of progress.
SECONDS_BETWEEN_LINES = 5.0

_INTERRUPTS = """

In each iteration of training, the agent makes some plans and learns from them. A checkpoint contains the state after the last
complete iteration. After Ctrl-C, the command stops the current iteration, writes a checkpoint, and ends with exit code 130 (143
after SIGTERM, 129 after SIGHUP); --resume then repeats the iteration that was stopped. A second Ctrl-C ends the command
immediately.
"""


@dataclass(kw_only=True)
class Training(ABC, Generic[T]):
    """One run of ``stowplan train``. Its options are the fields of this class."""

    KIND: ClassVar[tuple[str, str]]
    """The kind of the agent's problems, and what such problems are made from; both are for messages."""
    INPUTS: ClassVar[tuple[str, ...]]
    """Names of the options with which the agent's inputs are read."""
    TEXTS: ClassVar[Mapping[str, str]]
    """Help texts, by name of the option, that replace the general ones."""
    AMOUNT: ClassVar[str]
    """Name of the option that says how long to train."""
    AMOUNT_IN_CONFIG: ClassVar[str]
    """The corresponding field of the trainer's configuration, which has its hyperparameters."""
    UNIT: ClassVar[str]
    """Unit of the amount of training, for example ``evaluations``."""
    CANDIDATES: ClassVar[str] = "heuristic,learned,exact"
    """Candidates that search for the plans of ``--demonstrate``."""
    NETWORK: ClassVar[tuple[str, ...]] = ()
    """Fields of the configuration that describe the network. With ``--from``, their values are taken from the configuration of
    that policy."""

    output: Annotated[
        Path,
        option("-o --output", "FILE", "Write checkpoints to this file, during training (see --save-every) and at its end."),
    ]
    time_limit: Annotated[
        float | None,
        option(
            "--time-limit",
            "SECONDS",
            "Time limit, counted from the start of the command, so that it includes reading the inputs. By default, there "
            "is no limit.",
        ),
    ] = None
    resume: Annotated[
        bool,
        option(
            "--resume",
            "",
            "Continue from the checkpoint in the file of -o, with the same inputs. If this file exists, either --resume or "
            "--overwrite is required.",
        ),
    ] = False
    overwrite: Annotated[
        bool, option("--overwrite", "", "Start from the beginning, and overwrite the checkpoint in the file of -o.")
    ] = False
    preset: Annotated[
        str | None,
        option(
            "--preset",
            "NAME",
            "Preset of hyperparameters: cpu or paper. cpu, the default, has values for a single processor core. paper has "
            "the values of the publication that describes the agent.",
        ),
    ] = None
    settings: Annotated[
        list[str] | None,
        option(
            "--set",
            "NAME=VALUE",
            "Set a hyperparameter of the agent, or an advanced option that says how the inputs are read. If a name is "
            "unknown, the error message lists all hyperparameters; 'stowplan settings' lists the advanced options. May be "
            "given several times.",
        ),
    ] = None
    seed: Annotated[
        int | None, option("--seed", "N", "Seed of all random numbers: a whole number, 0 or more. The default is 0.")
    ] = None
    demonstrations: Annotated[
        list[Path] | None,
        option(
            "--demonstrations",
            "PLAN",
            "Existing plan for one of the inputs, from which the agent learns as well. May be given several times.",
        ),
    ] = None
    start_from: Annotated[
        Path | None,
        option(
            "--from",
            "POLICY",
            "Start with the weights of the policy in this file, which --policy of an earlier run wrote. By default, the "
            "weights are random.",
        ),
    ] = None
    curve: Annotated[
        Path | None,
        option(
            "--curve",
            "FILE",
            "Write the training curve to this file, as CSV with a row for each iteration. With --resume, rows are appended.",
        ),
    ] = None
    policy: Annotated[
        Path | None,
        option(
            "--policy",
            "FILE",
            "Write the trained policy to this file. 'stowplan validate' and 'stowplan solve' can use it "
            "(docs/reference/learned-guidance.md).",
        ),
    ] = None
    plans: Annotated[
        Path | None,
        option(
            "--plans",
            "FOLDER",
            "Write the best plan for each input to this folder. The folder is created if it does not exist.",
        ),
    ] = None
    save_every: Annotated[float, option("--save-every", "SECONDS", "Minimum time between two checkpoints.")] = 60.0
    as_json: Annotated[bool, option("--json", "", "Print the result as JSON instead of a summary.")] = False
    quiet: Quiet = False
    options: ReadOptions
    sources: list[Path]
    """The input files. Each agent declares what they are."""
    demonstrate: float | None = None
    """Seconds of the search for a plan of each problem, from which the agent learns. Each agent describes the option itself."""

    # Methods that agents override

    @property
    @abstractmethod
    def trainer(self) -> type[T]:
        """The class of the trainer. It is imported when it is needed."""

    @property
    def fixed_options(self) -> Mapping[str, Any]:
        """The values of the agent's own options that cannot be changed when a run is resumed, by flag."""
        return {}

    def check(self) -> None:
        """Raises UsageError or MissingDependencyError if the agent's own options are not valid, or need a package that is not
        installed. It is called before anything is read."""

    def check_problem(self, problem: Any, others: Sequence[Any]) -> None:
        """Raises InputError if the agent cannot learn from a problem. ``others`` are the problems that were read before it."""

    def training_problems(self, problems: list[Any]) -> list[Any]:
        """The problems to train on, which are made from the problems that were read. Raises UsageError if none can be made."""
        return problems

    def adjusted_config(self, config: Any) -> Any:
        """The configuration of a preset, changed as the agent's own options say. Raises UsageError for an invalid option."""
        return config

    @property
    def trainer_arguments(self) -> dict[str, Any]:
        """Arguments of the trainer other than problems, configuration and seed. When a run is resumed, they are passed again,
        because a checkpoint does not contain them."""
        return {}

    def weights(self, network: Any) -> Any:
        """The weights of a policy's network in the form that the trainer accepts."""
        return network.state_dict()

    def new_trainer(self, problems: list[Any], config: Any) -> T:
        """A trainer before its first iteration. With ``--from``, it has the weights of that policy.

        Raises InputError if the policy's file cannot be read, or if its weights do not fit the problems.
        """
        from stowplan.learned_guidance.training.checkpoint import load_policy

        arguments = {"seed": self.seed or 0, **self.trainer_arguments}
        if self.start_from is None:
            return self.trainer(problems, config, **arguments)
        content, network = load_policy(self.start_from, self.trainer.POLICY)
        arguments["weights"] = self.weights(network)
        config = config.changed(**{name: getattr(content.config, name) for name in self.NETWORK})
        try:
            return self.trainer(problems, config, **arguments)
        except InputError as error:
            raise error.within(self.start_from) from error

    def check_trainer(self, trainer: T) -> None:
        """Raises UsageError, before training begins, if the trainer cannot do what the options ask for."""

    def learn_from_search(self, trainer: T, index: int, limit: float, deadline: Deadline) -> None:
        """Searches for a plan of the problem with this index for at most ``limit`` seconds, and lets the trainer learn from it.

        If no plan is found, or if the agent could not have made it, the trainer learns nothing.
        """
        from stowplan.kernel.solve import solve

        problem, cancel = trainer.problems[index], deadline.cancelled
        plan = solve(problem, time_limit=limit, candidates=self.CANDIDATES, seed=self.seed or 0, cancel=cancel).plan
        try:
            if plan is not None:
                trainer.demonstrate(index, plan)
        except InputError as error:
            note(f"stowplan: the plan found of {files.printable(problem.name)} {error}: it is not learned from")

    @abstractmethod
    def figures(self, trainer: T) -> dict[str, Any]:
        """Figures of the training for ``--json``."""

    @abstractmethod
    def headline(self, trainer: T) -> str:
        """The figures of the training as text."""

    @abstractmethod
    def rows(self, trainer: T) -> tuple[str, list[dict[str, Any]]]:
        """The name of the list of problems in the output of ``--json``, a plural such as ``graphs``, and the entries of this
        list. The singular, ``graph``, is the key of the problem's name in each entry."""

    @abstractmethod
    def line(self, row: dict[str, Any]) -> str:
        """An entry of the list of problems as text."""

    # Methods that are the same for all agents

    def run(self) -> None:
        """Trains the agent, writes the files and reports the result. It raises :class:`typer.Exit` at its end, and an error of
        :mod:`stowplan.errors` if an option or a file is wrong or the time limit is over before everything was read."""
        began = cli.began()
        self._check()
        with event_on_interrupt() as cancel:
            problems = self.training_problems(read_within(self.time_limit, self._read, began))
            deadline = Deadline(cancelled=cancel)
            if self.time_limit is not None:
                deadline = deadline.within(limit_after(began, self.time_limit))
            trainer = self._resumed_trainer(problems) if self.resume else self._started_trainer(problems, deadline)
            self.check_trainer(trainer)
            # The folder is created only once everything has been read successfully.
            if self.plans is not None:
                files.make_folder(self.plans)
            was_done, started = trainer.done, time.monotonic()
            outcome = self._train(trainer, cancel, began)
            training_end = time.monotonic()
            digest = None if self.policy is None else trainer.save_policy(self.policy)
        if self.plans is not None:
            for index in range(len(trainer.problems)):
                if (plan := trainer.plan(index)) is not None:
                    plan.save(self.plans / f"{index:03d}.plan.json")
        name, rows = self.rows(trainer)
        if self.as_json:
            done = {"outcome": outcome, **self.figures(trainer), "seconds": round(trainer.seconds, 3)}
            say_json({**done, "policy_sha256": digest, name: rows})
        else:
            lines = [f"{self.headline(trainer)}, {trainer.seconds:.1f} s ({outcome})"]
            lines += [f"  {files.printable(str(row[name[:-1]]))}: {self.line(row)}" for row in rows]
            if outcome == "steps_done":
                ended = "nothing was left to do: all" if was_done else "ended because all"
                amount = f"{getattr(trainer.config, self.AMOUNT_IN_CONFIG)} {self.UNIT}"
                lines.append(f"  {ended} {amount} are done; --resume with a larger --{self.AMOUNT} goes on")
            now = time.monotonic()
            lines.append(
                f"  {now - began:.1f} s in all: {started - began:.1f} s to read the input and get ready, "
                f"{training_end - started:.1f} s to train, {now - training_end:.1f} s to write the rest"
            )
            say("\n".join(lines))
        raise typer.Exit(INTERRUPTED if cancel.is_set() else 0)

    def _check(self) -> None:
        """Checks all options. Raises UsageError or MissingDependencyError."""
        if self.time_limit is not None:
            number("--time-limit {}", self.time_limit, 0.0, or_least=False)
        number("--save-every {}", self.save_every, 0.0)
        if self.demonstrate is not None:
            number("--demonstrate {}", self.demonstrate, 0.0, or_least=False)
        self.check()
        if self.plans is not None:
            check_folder(self.plans)
        read = (*self.sources, *self.options.files, self.start_from, *(self.demonstrations or ()))
        check_outputs((self.output, self.curve, self.policy), inputs=read)
        if self.resume and self.overwrite:
            raise UsageError("--resume and --overwrite contradict each other")
        if self.resume and not self.output.exists():
            raise UsageError(f"{self.output}: there is no checkpoint to resume")
        if not self.resume and not self.overwrite and self.output.exists():
            raise UsageError(f"{self.output}: exists; --resume goes on from it, --overwrite begins anew")
        fixed_options = {
            "--preset": self.preset,
            **self.fixed_options,
            "--set": self.settings,
            "--seed": self.seed,
            "--from": self.start_from,
            "--demonstrations": self.demonstrations or None,
            "--demonstrate": self.demonstrate,
        }
        for name, value in fixed_options.items():
            if self.resume and value is not None:
                raise UsageError(f"{name} cannot be changed in a run that is resumed")
        if (self.preset or "cpu") not in ("cpu", "paper"):
            raise UsageError(f"--preset: found {self.preset!r}, expected cpu or paper")
        try:
            import torch
        except ImportError as error:
            raise MissingDependencyError(f"training needs torch: {to_install('learned')}") from error
        # Training uses many small batches. Several threads would spend their time waiting for each other.
        torch.set_num_threads(1)

    def _read(self) -> list[Any]:
        """Reads the problems. Raises InputError if one of them is not for this agent."""
        kind, what = self.KIND
        problems: list[Any] = []
        for path in self.sources:
            problem = open_with_notes(path, self.options, kind)
            if kinds.of_problem(problem).title != kind:
                raise InputError(f"found another kind of problem, expected {kind} ({what})", source=path)
            try:
                self.check_problem(problem, problems)
            except InputError as error:
                raise error.within(path) from error
            problems.append(problem)
        return problems

    @property
    def _changes(self) -> dict[str, Any]:
        """Changes of the configuration that are allowed even when a run is resumed, namely the amount of training."""
        amount = getattr(self, self.AMOUNT)
        return {} if amount is None else {self.AMOUNT_IN_CONFIG: amount}

    def _resumed_trainer(self, problems: list[Any]) -> T:
        """The trainer in the state of the checkpoint; raises InputError if the checkpoint does not fit the problems."""
        return self.trainer.resume(self.output, problems, changes=self._changes, **self.trainer_arguments)

    def _started_trainer(self, problems: list[Any], deadline: Deadline) -> T:
        """A new trainer, which has learned from the plans that were given and from plans that were searched for."""
        from stowplan.frontends.read import read_plan
        from stowplan.learned_guidance.training.settings import with_settings

        config = self.adjusted_config(getattr(self.trainer.CHECKPOINT.config, self.preset or "cpu")())
        trainer = self.new_trainer(problems, with_settings(config, self.settings or ()).changed(**self._changes))
        digests = [problem.digest for problem in trainer.problems]
        for path in self.demonstrations or ():
            plan = read_plan(path)
            if plan.problem not in digests:
                raise InputError("is a plan of another problem, expected one of those to train on", source=path)
            try:
                for index, digest in enumerate(digests):
                    if digest == plan.problem:
                        trainer.demonstrate(index, plan)
            except InputError as error:
                raise error.within(path) from error
        for index in range(len(digests)):
            if self.demonstrate is None or deadline.expired:
                break
            # Most of the time limit is left for training.
            share = DEMONSTRATION_SHARE * deadline.remaining / (len(digests) - index)
            self.learn_from_search(trainer, index, max(MIN_DEMONSTRATION_SECONDS, min(self.demonstrate, share)), deadline)
        return trainer

    def _train(self, trainer: T, cancel: threading.Event, began: float) -> str:
        """Trains within the limits, and writes checkpoints and the curve. Returns why the training ended: ``steps_done`` if all
        training that was asked for is done, otherwise ``time_limit`` or ``stopped``."""
        from stowplan.learned_guidance.training.curve import CurveFile
        from stowplan.learned_guidance.training.run import run

        curve = None if self.curve is None else CurveFile(self.curve, trainer.COLUMNS, trainer.iteration)
        with LinePrinter(self.quiet, SECONDS_BETWEEN_LINES) as printer:

            def report(progress: Any) -> None:
                printer.show(progress.line)
                if curve is not None:
                    curve.append(progress.row)

            return run(
                trainer,
                time_limit=None if self.time_limit is None else limit_after(began, self.time_limit),
                should_stop=cancel.is_set,
                on_progress=report,
                save=lambda: trainer.save(self.output),
                save_every=self.save_every,
            )


def command(training: type[Training[Any]]) -> Callable[..., None]:
    """The command that trains an agent. Its options are the fields of the class, and its help is the docstring of the class."""
    hints = get_type_hints(training, include_extras=True)

    def run(**values: Any) -> None:
        training(**values).run()

    run.__doc__ = f"{inspect.cleandoc(training.__doc__ or '')}{_INTERRUPTS}"
    missing = dataclasses.MISSING
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is missing else field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(training)
        if field.init
    ]
    return with_options(training.INPUTS, texts=training.TEXTS)(with_parameters(run, parameters))
