"""``stowplan train``: learned policies, one command for each agent."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stowplan import files
from stowplan.cli.common import Capacity, CostModel, Quiet, TargetOption, check_outputs
from stowplan.cli.output import note, say, say_json
from stowplan.deadline import Deadline, limit_after
from stowplan.errors import InputError, MissingDependencyError, UsageError

if TYPE_CHECKING:
    from stowplan.learned_guidance.memory_mapping.muzero.trainer import Progress, Trainer
    from stowplan.learned_guidance.memory_mapping.muzero.training_config import TrainingConfig

INTERRUPTED = 130

#: What mending a demonstration takes, of the time of solving.
MENDING_SHARE = 0.5


def muzero_command(
    programs: Annotated[
        list[Path],
        typer.Argument(metavar="PROGRAM", help="Compiled programs or problem files of memory mapping, as 'solve' takes."),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Checkpoint: written now and then, and at the end.")
    ],
    target: TargetOption = None,
    capacity: Capacity = None,
    cost_model: CostModel = None,
    time_limit: Annotated[
        float | None, typer.Option("--time-limit", metavar="SECONDS", help="Stop after this time, reading included.")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", metavar="N", help="Stop after this many training steps.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint, with the same programs.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin anew though there is a checkpoint.")] = False,
    preset: Annotated[
        str | None, typer.Option("--preset", metavar="NAME", help="Hyperparameters: cpu (the default) or paper.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option("--search", metavar="NAME", help="How moves are searched: gumbel, puct, or none (learning only)."),
    ] = None,
    simulations: Annotated[
        int | None, typer.Option("--simulations", metavar="N", help="Simulations of the search for each move.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Any other hyperparameter, again and again (docs/mmap-muzero.md lists them)."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="Seed of everything random (default 0).")] = None,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="Where the network is: cpu or cuda.")] = "cpu",
    demonstrations: Annotated[
        list[Path] | None,
        typer.Option("--demonstrations", metavar="PLAN", help="Plan of one of the programs to learn from, again and again."),
    ] = None,
    demonstrate: Annotated[
        float | None,
        typer.Option(
            "--demonstrate", metavar="SECONDS", help="Solve each program for so long, and learn from the mended plan."
        ),
    ] = None,
    start_from: Annotated[
        Path | None, typer.Option("--from", metavar="POLICY", help="Begin with the weights of this policy.")
    ] = None,
    windows: Annotated[
        int | None,
        typer.Option("--windows", metavar="N", help="Learn on N random windows of each program, not the whole of it."),
    ] = None,
    window_moves: Annotated[
        int, typer.Option("--window-moves", metavar="N", help="Moves of a window, at most, or nearly so.")
    ] = 400,
    curve: Annotated[
        Path | None, typer.Option("--curve", metavar="FILE", help="Write the training curve here, as CSV, while it grows.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option("--policy", metavar="FILE", help="Write the trained network here, small enough to ship.")
    ] = None,
    plans: Annotated[
        Path | None, typer.Option("--plans", metavar="FOLDER", help="Write the best plan of each program here.")
    ] = None,
    save_every: Annotated[float, typer.Option("--save-every", metavar="SECONDS", help="Between two checkpoints.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train MMap-MuZero to map the memory of one or more programs.

    Ctrl-C writes the checkpoint and ends with exit code 130; a second one ends at once.
    """
    began = time.monotonic()
    if time_limit is not None and not time_limit > 0:
        raise UsageError(f"--time-limit: found {time_limit:g}, expected more than 0")
    check_outputs((output, curve, policy), inputs=(*programs, *(demonstrations or ()), start_from))
    if plans is not None and not plans.is_dir():
        raise UsageError(f"{plans}: there is no such folder, expected one to write plans to")
    _check_start(
        output,
        resume,
        overwrite,
        {
            "--preset": preset,
            "--search": method,
            "--simulations": simulations,
            "--set": settings,
            "--seed": seed,
            "--demonstrations": demonstrations,
            "--demonstrate": demonstrate,
            "--from": start_from,
        },
    )
    _prepare_torch(device)
    problems = _windows_of(_read(programs, target, capacity, cost_model), windows, window_moves, seed or 0)
    with _stopping() as deadline:
        if resume:
            trainer = _resumed(output, problems, device, steps)
        else:
            config = _configured(preset, method, simulations, settings or (), steps)
            trainer = _new_trainer(problems, config, seed or 0, device, start_from)
            _demonstrate(trainer, demonstrations or (), demonstrate, deadline, seed or 0)
        with _Printer(quiet) as printer:
            outcome = trainer.run(
                time_limit=None if time_limit is None else limit_after(began, time_limit),
                should_stop=deadline.stopper(),
                on_progress=_both(printer, _curve_file(curve, trainer)),
                save_to=output,
                save_every=save_every,
            )
    digest = None if policy is None else trainer.save_policy(policy)
    if plans is not None:
        _write_plans(trainer, plans)
    _report(trainer, outcome, digest, as_json)
    raise typer.Exit(INTERRUPTED if deadline.was_cancelled else 0)


def _check_start(output: Path, resume: bool, overwrite: bool, given: dict[str, Any]) -> None:
    if resume and overwrite:
        raise UsageError("--resume and --overwrite contradict each other")
    if resume and not output.exists():
        raise UsageError(f"{output}: there is no checkpoint to resume")
    if not resume and not overwrite and output.exists():
        raise UsageError(f"{output}: exists; --resume goes on from it, --overwrite begins anew")
    fixed = [name for name, value in given.items() if value is not None]
    if resume and fixed:
        raise UsageError(f"{fixed[0]} cannot be changed in a run that is resumed")


def _prepare_torch(device: str) -> None:
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError("training needs torch: pip install 'stowplan[learned]'") from error
    # Games are many and small: with more threads they wait for each other.
    torch.set_num_threads(1)
    if device not in ("cpu", "cuda"):
        raise UsageError(f"--device: found {device!r}, expected cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device: cuda was asked for, but torch finds no such device")


def _read(programs: list[Path], target: str | None, capacity: int | None, cost_model: str | None) -> list[Any]:
    from stowplan.models.memory_mapping.problem import Problem
    from stowplan.portfolio.read import open_input

    problems = []
    for path in programs:
        problem = open_input(path, target, capacity=capacity, cost_model=cost_model).problem
        if not isinstance(problem, Problem):
            raise InputError("found another kind of problem, expected memory mapping (a compiled program)", source=path)
        problems.append(problem)
    return problems


def _windows_of(problems: list[Any], count: int | None, moves: int, seed: int) -> list[Any]:
    """Windows in place of the programs, where that is asked for; the seed decides which."""
    if count is None:
        return problems
    if count < 1 or moves < 1:
        raise UsageError(f"--windows and --window-moves: found {count} and {moves}, expected 1 or more")
    import numpy as np

    from stowplan.learned_guidance.memory_mapping.game.variants import training_variants

    rng = np.random.default_rng(seed)
    found = [variant for problem in problems for variant in training_variants(problem, rng, moves=moves, count=count)]
    if not found:
        raise UsageError("--windows: hardly any window of these programs has something to gain")
    return found


def _configured(
    preset: str | None, method: str | None, simulations: int | None, settings: tuple[str, ...] | list[str], steps: int | None
) -> TrainingConfig:
    from stowplan.learned_guidance.memory_mapping.muzero.training_config import TrainingConfig, with_settings

    presets = {"cpu": TrainingConfig.cpu, "paper": TrainingConfig.paper}
    if (preset or "cpu") not in presets:
        raise UsageError(f"--preset: found {preset!r}, expected cpu or paper")
    config = presets[preset or "cpu"]()
    if method == "none":
        config = config.learning_only()
    elif method is not None:
        if method not in ("gumbel", "puct"):
            raise UsageError(f"--search: found {method!r}, expected gumbel, puct or none")
        config = config.changed(search=replace(config.search, method=method))  # type: ignore[arg-type]
    if simulations is not None:
        config = config.changed(search=replace(config.search, simulations=simulations))
    config = with_settings(config, settings)
    return config if steps is None else config.changed(training_steps=steps)


def _new_trainer(problems: list[Any], config: TrainingConfig, seed: int, device: str, start_from: Path | None) -> Trainer:
    from stowplan.learned_guidance.memory_mapping.muzero.checkpoint import load_policy
    from stowplan.learned_guidance.memory_mapping.muzero.trainer import Trainer

    weights = None
    if start_from is not None:
        policy = load_policy(start_from)
        config, weights = config.changed(network=policy.config.network), policy.weights
    try:
        return Trainer(problems, config, seed=seed, device=device, weights=weights)
    except RuntimeError as error:
        if start_from is None:
            raise
        raise InputError(
            f"the weights do not fit the network: {' '.join(str(error).split())[:200]}", source=start_from
        ) from error


def _resumed(output: Path, problems: list[Any], device: str, steps: int | None) -> Trainer:
    from stowplan.learned_guidance.memory_mapping.muzero.trainer import Trainer

    return Trainer.resume(output, problems, device=device, changes={} if steps is None else {"training_steps": steps})


def _demonstrate(trainer: Trainer, plans: Any, seconds: float | None, deadline: Deadline, seed: int) -> None:
    """Teach the trainer plans from files, and plans that are found now."""
    if not plans and seconds is None:
        return
    from stowplan.learned_guidance.memory_mapping.baselines.local_search import improve
    from stowplan.learned_guidance.memory_mapping.game.demonstrations import actions_of
    from stowplan.learned_guidance.memory_mapping.game.variants import as_played
    from stowplan.models.memory_mapping import plan as plan_files
    from stowplan.models.memory_mapping.verify import verify
    from stowplan.portfolio.solve import solve

    problems = [arena.problem for arena in trainer.arenas]
    for path in plans:
        plan = plan_files.load(path)
        numbers = [number for number, problem in enumerate(problems) if problem.digest == plan.problem]
        if not numbers:
            raise InputError(f"is a plan of another problem ({plan.program}), expected one of those to train on", source=path)
        found = verify(problems[numbers[0]], plan)
        if found.violations:
            raise InputError(f"is no valid plan: {found.violations[0]}", source=path)
        for number in numbers:
            trainer.demonstrate(number, actions_of(problems[number], plan).actions)
    if seconds is not None:
        for number, problem in enumerate(problems):
            if deadline.expired:
                return
            result = solve(as_played(problem), time_limit=seconds, seed=seed)
            if result.plan is not None:
                game = trainer.arenas[number].game
                shown = actions_of(problem, result.plan, game)
                mended = improve(game, shown.actions, seed=seed, time_limit=MENDING_SHARE * seconds)
                trainer.demonstrate(number, shown.actions if mended.actions is None else mended.actions)


def _curve_file(path: Path | None, trainer: Trainer) -> Callable[[Progress], None]:
    if path is None:
        return lambda _: None
    from stowplan.learned_guidance.training.curve import CurveFile

    return CurveFile(path, trainer.iteration)


def _both(one: Callable[[Progress], None], other: Callable[[Progress], None]) -> Callable[[Progress], None]:
    def call(progress: Progress) -> None:
        one(progress)
        other(progress)

    return call


def _write_plans(trainer: Trainer, folder: Path) -> None:
    for number, (arena, best) in enumerate(zip(trainer.arenas, trainer.best, strict=True)):
        if best.actions is not None:
            state = arena.game.reset()
            state.play(best.actions)
            state.plan().save(folder / f"{number:03d}.plan.json")


def _report(trainer: Trainer, outcome: str, digest: str | None, as_json: bool) -> None:
    rows = [
        {
            "program": arena.problem.name,
            "problem": arena.problem.digest,
            "moves": len(arena.game.moves),
            "games": best.games,
            "return_ps": best.return_ps,
            "normalised_return": None if best.return_ps is None else arena.normalised(best.return_ps),
        }
        for arena, best in zip(trainer.arenas, trainer.best, strict=True)
    ]
    if as_json:
        say_json(
            {
                "outcome": outcome,
                "training_steps": trainer.learner.steps,
                "games": trainer.games,
                "moves": trainer.moves,
                "seconds": round(trainer.seconds, 3),
                "policy_sha256": digest,
                "programs": rows,
            }
        )
        return
    lines = [f"{trainer.learner.steps} training steps, {trainer.games} games in {trainer.seconds:.1f} s ({outcome})"]
    for row in rows:
        best = "no game finished" if row["return_ps"] is None else f"best R {row['normalised_return']:.4f}"
        lines.append(f"  {files.printable(str(row['program']))}: {best}, {row['games']} games of {row['moves']} moves")
    say("\n".join(lines))


@contextmanager
def _stopping() -> Iterator[Deadline]:
    """A deadline that Ctrl-C expires; a second Ctrl-C interrupts as it always does."""
    deadline = Deadline()

    def stop(number: int, frame: FrameType | None) -> None:
        deadline.cancel()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield deadline
    finally:
        signal.signal(signal.SIGINT, before)


class _Printer:
    """Progress of training on standard error: one live line on a terminal, plain lines elsewhere."""

    def __init__(self, quiet: bool, every: float = 5.0):
        self._quiet = quiet
        self._every = every
        self._last = -math.inf
        self._status: Any = None

    def __enter__(self) -> _Printer:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status("playing the first games")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, progress: Progress) -> None:
        """Show one iteration."""
        if self._status is not None:
            self._status.update(_line(progress))
        elif not self._quiet and time.monotonic() - self._last >= self._every:
            note(_line(progress))
            self._last = time.monotonic()


def _line(progress: Progress) -> str:
    losses = progress.losses
    best = "no game yet" if math.isnan(progress.best) else f"best R {progress.best:.4f}"
    mean = "" if math.isnan(progress.mean) else f", mean {progress.mean:.4f}"
    learning = "" if losses is None else f", loss {losses.total:.3f}, value error {losses.value_error:.3f}"
    return (
        f"[{progress.seconds:6.1f} s] {best}{mean}, {progress.games} games, {progress.training_steps} steps{learning}, "
        f"{progress.moves_per_second:.0f} moves/s"
    )
