"""``stowplan train muzero``: MMap-MuZero."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stowplan import files
from stowplan.cli.common import Capacity, CostModel, Quiet, TargetOption, target_file
from stowplan.cli.output import note, say, say_json
from stowplan.cli.signals import stopping
from stowplan.cli.train.common import (
    INTERRUPTED,
    NOTHING_WITHIN_LIMIT,
    AsJson,
    Common,
    Curve,
    Demonstrations,
    Output,
    Overwrite,
    Plans,
    PolicyOutput,
    Preset,
    Resume,
    SaveEvery,
    Seed,
    Settings,
    StartFrom,
    TimeLimit,
    Training,
    demonstrated,
    numbered_plan,
)
from stowplan.deadline import Deadline
from stowplan.errors import InputError, UsageError

if TYPE_CHECKING:
    from stowplan.learned_guidance.memory_mapping.muzero.config import TrainingConfig
    from stowplan.learned_guidance.memory_mapping.muzero.trainer import Trainer

#: What local search from a demonstration takes, of the time of solving.
LOCAL_SEARCH_SHARE = 0.5


def muzero_command(
    programs: Annotated[
        list[Path],
        typer.Argument(metavar="PROGRAM", help="Compiled programs or problem files of memory mapping, as 'solve' takes."),
    ],
    output: Output,
    target: TargetOption = None,
    capacity: Capacity = None,
    cost_model: CostModel = None,
    time_limit: TimeLimit = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            metavar="N",
            help="Stop after this many training steps (default 20000; 1000000 of --preset paper), time limit or not.",
        ),
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    preset: Preset = None,
    method: Annotated[
        str | None,
        typer.Option("--search", metavar="NAME", help="How moves are searched: gumbel, puct, or none (learning only)."),
    ] = None,
    simulations: Annotated[
        int | None, typer.Option("--simulations", metavar="N", help="Simulations of the search for each move.")
    ] = None,
    settings: Settings = None,
    seed: Seed = None,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="Where the network is: cpu or cuda.")] = "cpu",
    demonstrations: Demonstrations = None,
    demonstrate: Annotated[
        float | None,
        typer.Option(
            "--demonstrate",
            metavar="SECONDS",
            help="Solve each program for so long, and learn from the plan after local search.",
        ),
    ] = None,
    start_from: StartFrom = None,
    windows: Annotated[
        int | None,
        typer.Option("--windows", metavar="N", help="Learn on N random windows of each program, not the whole of it."),
    ] = None,
    window_moves: Annotated[
        int, typer.Option("--window-moves", metavar="N", help="Moves of a window, at most, or nearly so.")
    ] = 400,
    curve: Curve = None,
    policy: PolicyOutput = None,
    plans: Plans = None,
    save_every: SaveEvery = 60.0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train MMap-MuZero to map the memory of one or more programs.

    Ctrl-C writes the checkpoint and ends with exit code 130, SIGTERM and SIGHUP likewise with 143 and 129; a second Ctrl-C
    ends at once.
    """
    began = time.monotonic()
    options = Common(
        output=output,
        time_limit=time_limit,
        resume=resume,
        overwrite=overwrite,
        seed=seed,
        start_from=start_from,
        curve=curve,
        policy=policy,
        plans=plans,
        demonstrations=demonstrations or (),
        demonstrate=demonstrate,
        save_every=save_every,
        quiet=quiet,
    )
    options.check(
        inputs=(*programs, target_file(target)),
        fixed={
            "--preset": preset,
            "--search": method,
            "--simulations": simulations,
            "--set": settings,
        },
    )
    _check_device(device)
    from stowplan.learned_guidance.memory_mapping.muzero.progress import COLUMNS
    from stowplan.learned_guidance.memory_mapping.muzero.trainer import Trainer
    from stowplan.learned_guidance.memory_mapping.muzero.warm_up import compiling

    # Another process compiles, where that is to be done, while this one reads.
    with compiling() as is_compiled, stopping() as cancel:
        problems = _windows_of(_read(programs, target, capacity, cost_model), windows, window_moves, seed or 0)
        deadline = options.within(Deadline(cancelled=cancel), began)
        if not is_compiled(deadline.stopper()):
            note("stowplan: ended while training was being compiled for the first time: there is no checkpoint")
            raise typer.Exit(INTERRUPTED if cancel.is_set() else NOTHING_WITHIN_LIMIT)
        if resume:
            trainer = Trainer.resume(
                output, problems, device=device, changes={} if steps is None else {"training_steps": steps}
            )
        else:
            config = _configured(preset, method, simulations, settings or (), steps)
            trainer = _new_trainer(problems, config, seed or 0, device, start_from)
            _demonstrate(trainer, options, deadline, cancel)
        trained = options.train(trainer, COLUMNS, cancel, began)
    if plans is not None:
        _write_plans(trainer, plans)
    _report(trainer, trained, as_json)
    raise typer.Exit(INTERRUPTED if cancel.is_set() else 0)


def _read(programs: list[Path], target: str | None, capacity: int | None, cost_model: str | None) -> list[Any]:
    from stowplan.frontends.read import read
    from stowplan.models.memory_mapping.problem import Problem

    problems = []
    for path in programs:
        problem = read(path, target, capacity=capacity, cost_model=cost_model)
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

    from stowplan.learned_guidance.memory_mapping.game.programs import training_variants

    rng = np.random.default_rng(seed)
    found = [variant for problem in problems for variant in training_variants(problem, rng, moves=moves, count=count)]
    if not found:
        raise UsageError("--windows: hardly any window of these programs has something to gain")
    return found


def _configured(
    preset: str | None, method: str | None, simulations: int | None, settings: Sequence[str], steps: int | None
) -> TrainingConfig:
    from stowplan.learned_guidance.memory_mapping.muzero.config import TrainingConfig
    from stowplan.learned_guidance.training.settings import with_settings

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
    from stowplan.learned_guidance.memory_mapping.muzero.play import Policy
    from stowplan.learned_guidance.memory_mapping.muzero.trainer import Trainer

    if start_from is None:
        return Trainer(problems, config, seed=seed, device=device)
    return Policy.load(start_from).trainer(problems, config, seed=seed, device=device)


def _check_device(device: str) -> None:
    import torch

    if device not in ("cpu", "cuda"):
        raise UsageError(f"--device: found {device!r}, expected cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device: cuda was asked for, but torch finds no such device")


def _demonstrate(trainer: Trainer, options: Common, deadline: Deadline, cancel: threading.Event) -> None:
    """Teach the trainer plans from files, and plans that are found now."""
    if not options.demonstrations and options.demonstrate is None:
        return
    from stowplan.learned_guidance.memory_mapping.game.demonstrations import actions_of
    from stowplan.learned_guidance.memory_mapping.game.local_search import improve_plan
    from stowplan.learned_guidance.memory_mapping.game.programs import as_played
    from stowplan.models.memory_mapping import plan as plan_files
    from stowplan.models.memory_mapping.verify import verify
    from stowplan.portfolio.solve import solve

    problems = [program.problem for program in trainer.programs]
    seed = options.seed or 0
    for path in options.demonstrations:
        plan = plan_files.Plan.load(path)
        numbers = demonstrated([problem.digest for problem in problems], plan.problem, plan.program, path)
        found = verify(problems[numbers[0]], plan)
        if found.violations:
            raise InputError(f"is no valid plan: {found.violations[0]}", source=path)
        for number in numbers:
            trainer.demonstrate(number, actions_of(problems[number], plan).actions)
    for number, program in enumerate(trainer.programs):
        limit = options.seconds_to_demonstrate(deadline, len(problems) - number)
        if limit is None:
            return
        plan = solve(as_played(program.problem), time_limit=limit, seed=seed, cancel=cancel).plan
        if plan is not None:
            limit = LOCAL_SEARCH_SHARE * limit
            improved = improve_plan(program.game, plan, seed=seed, time_limit=limit, should_stop=deadline.stopper())
            if improved.actions is not None:
                trainer.demonstrate(number, improved.actions)


def _write_plans(trainer: Trainer, folder: Path) -> None:
    from stowplan.learned_guidance.memory_mapping.muzero.play import Played

    for number, (program, best) in enumerate(zip(trainer.programs, trainer.best, strict=True)):
        if best.actions is not None:
            Played.of(program.game, best.actions).plan.save(numbered_plan(folder, number))


def _report(trainer: Trainer, trained: Training, as_json: bool) -> None:
    rows = [
        {
            "program": program.problem.name,
            "problem": program.problem.digest,
            "moves": len(program.game.moves),
            "games": best.games,
            "return_ps": best.return_ps,
            "normalised_return": None if best.return_ps is None else program.normalised(best.return_ps),
        }
        for program, best in zip(trainer.programs, trainer.best, strict=True)
    ]
    if as_json:
        say_json(
            {
                "outcome": trained.outcome,
                "training_steps": trainer.learner.steps,
                "games": trainer.games,
                "moves": trainer.moves,
                "seconds": round(trainer.seconds, 3),
                "policy_sha256": trained.policy_sha256,
                "programs": rows,
            }
        )
        return
    lines = [f"{trainer.learner.steps} training steps, {trainer.games} games in {trainer.seconds:.1f} s ({trained.outcome})"]
    for row in rows:
        best = "no game finished" if row["return_ps"] is None else f"best R {row['normalised_return']:.4f}"
        lines.append(f"  {files.printable(str(row['program']))}: {best}, {row['games']} games of {row['moves']} moves")
    lines += trained.remarks(f"{trainer.config.training_steps} training steps", "--steps")
    say("\n".join(lines))
