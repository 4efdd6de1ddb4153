"""``stowplan train ppo``: the PPO mapper of modulo scheduling."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stowplan import arguments, files
from stowplan.cli.common import Quiet, files_of, with_input_options
from stowplan.cli.output import say, say_json
from stowplan.cli.signals import stopping
from stowplan.cli.train.common import (
    INTERRUPTED,
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
from stowplan.errors import InputError, MissingDependencyError, UsageError
from stowplan.frontends.options import ReadOptions

if TYPE_CHECKING:
    from stowplan.learned_guidance.modulo_scheduling.ppo.config import PpoConfig
    from stowplan.learned_guidance.modulo_scheduling.ppo.trainer import Trainer

#: Options of inputs of other kinds.
_OF_OTHERS = (
    "capacity", "cost_model", "stalls", "donation", "evictions", "prefetches", "cycles", "precision", "granularity",
    "address_spaces",
)  # fmt: skip

#: Seeds of generated graphs and of training differ by this, so that one does not repeat the other's draws.
_APART = 1_000_003


@with_input_options(without=_OF_OTHERS)
def ppo_command(
    graphs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[GRAPH]...", help="Loop bodies (data-flow graphs or problem files), as 'solve' takes."),
    ] = None,
    *,
    output: Output,
    generate: Annotated[
        int, typer.Option("--generate", metavar="N", help="Train on N generated graphs besides; the seed decides which.")
    ] = 0,
    time_limit: TimeLimit = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            metavar="N",
            help="Stop after this many placements (default 200000; 1000000 of --preset paper), time limit or not.",
        ),
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    preset: Preset = None,
    first: Annotated[
        str | None, typer.Option("--first", metavar="NAME", help="What counts first: ii (the default) or latency.")
    ] = None,
    ablation: Annotated[
        list[str] | None,
        typer.Option(
            "--without",
            metavar="NAME",
            help="Leave a part out, again and again: graph_network, attention, masks, lookahead, imitation.",
        ),
    ] = None,
    settings: Settings = None,
    seed: Seed = None,
    demonstrations: Demonstrations = None,
    demonstrate: Annotated[
        float | None,
        typer.Option(
            "--demonstrate", metavar="SECONDS", help="Map each graph by heuristics for so long, and imitate the plan."
        ),
    ] = None,
    start_from: StartFrom = None,
    curve: Curve = None,
    policy: PolicyOutput = None,
    plans: Plans = None,
    save_every: SaveEvery = 60.0,
    as_json: AsJson = False,
    quiet: Quiet = False,
    options: ReadOptions,
) -> None:
    """Train the PPO mapper to place the instructions of one or more loop bodies.

    Ctrl-C writes the checkpoint and ends with exit code 130, SIGTERM and SIGHUP likewise with 143 and 129; a second Ctrl-C
    ends at once.
    """
    began = time.monotonic()
    common = Common(
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
    arguments.whole("--generate {}", generate, 0)
    if not graphs and not generate:
        raise UsageError("found no graphs, expected some, or --generate N")
    common.check(
        inputs=(*(graphs or ()), *files_of(options)),
        fixed={"--preset": preset, "--set": settings, "--first": first, "--without": ablation},
    )
    _check_installed()
    with stopping() as cancel:
        from stowplan.learned_guidance.modulo_scheduling.ppo.progress import COLUMNS
        from stowplan.learned_guidance.modulo_scheduling.ppo.trainer import Trainer

        problems = _read(graphs or [], options) + _generated(generate, _seed(common), options)
        deadline = common.within(Deadline(cancelled=cancel), began)
        if resume:
            trainer = Trainer.resume(output, problems, changes={} if steps is None else {"steps": steps})
        else:
            config = _configured(preset, first, ablation or (), settings or (), steps)
            trainer = _new_trainer(problems, config, common)
            _demonstrate(trainer, common, deadline, cancel)
        trained = common.train(trainer, COLUMNS, cancel, began)
    found = [trainer.plan(number) for number in range(len(problems))]
    for number, plan in enumerate(found):
        if plans is not None and plan is not None:
            plan.save(numbered_plan(plans, number))
    _report(trainer, found, trained, as_json)
    raise typer.Exit(INTERRUPTED if cancel.is_set() else 0)


def _check_installed() -> None:
    from importlib.util import find_spec

    if find_spec("sb3_contrib") is None:
        raise MissingDependencyError("training a mapper needs sb3-contrib: pip install 'stowplan[learned]'")


def _seed(common: Common) -> int:
    """Of the run; of one that is resumed, what its checkpoint says."""
    if not common.resume:
        return common.seed or 0
    from stowplan.learned_guidance.modulo_scheduling.ppo.checkpoint import CHECKPOINT
    from stowplan.learned_guidance.training import checkpoint

    return checkpoint.load(common.output, CHECKPOINT).provenance.seed


def _read(graphs: list[Path], options: ReadOptions) -> list[Any]:
    from stowplan.frontends.read import open_input
    from stowplan.models.modulo_scheduling.bounds import find_obstacle
    from stowplan.models.modulo_scheduling.problem import Problem

    problems: list[Problem] = []
    for path in graphs:
        problem = open_input(path, options).problem
        if not isinstance(problem, Problem):
            raise InputError("found another kind of problem, expected modulo scheduling (a loop body)", source=path)
        obstacle = find_obstacle(problem) if problem.instructions else "it has no instructions"
        if obstacle is not None:
            raise InputError(f"cannot be mapped: {obstacle}", source=path)
        if problem.rules.pass_through:
            raise InputError("found the rule pass_through, expected single links", source=path)
        problems.append(problem)
    return problems


def _generated(count: int, seed: int, options: ReadOptions) -> list[Any]:
    import numpy as np

    from stowplan.hardware.se.machines import load_machine
    from stowplan.learned_guidance.modulo_scheduling.graphs import generated

    chance = np.random.default_rng(seed + _APART)
    machine = load_machine(options.target) if options.target is not None and count else None
    return [generated(chance, machine) for _ in range(count)]


def _configured(
    preset: str | None, first: str | None, without: Sequence[str], settings: Sequence[str], steps: int | None
) -> PpoConfig:
    from stowplan.learned_guidance.modulo_scheduling.ppo.config import PpoConfig
    from stowplan.learned_guidance.training.settings import with_settings

    presets = {"cpu": PpoConfig.cpu, "paper": PpoConfig.paper}
    if (preset or "cpu") not in presets:
        raise UsageError(f"--preset: found {preset!r}, expected cpu or paper")
    if first not in (None, "ii", "latency"):
        raise UsageError(f"--first: found {first!r}, expected ii or latency")
    config = presets[preset or "cpu"]()
    parts: dict[str, dict[str, Any]] = {name: {name: False} for name in ("graph_network", "attention", "masks", "lookahead")}
    parts["imitation"] = {"imitation_steps": 0}
    for name in without:
        if name not in parts:
            raise UsageError(f"--without: found {name!r}, expected one of {', '.join(parts)}")
        config = config.changed(**parts[name])
    if first is not None:
        config = config.changed(first=first)
    config = with_settings(config, settings)
    return config if steps is None else config.changed(steps=steps)


def _new_trainer(problems: list[Any], config: PpoConfig, common: Common) -> Trainer:
    from stowplan.learned_guidance.modulo_scheduling.ppo.checkpoint import load_policy
    from stowplan.learned_guidance.modulo_scheduling.ppo.trainer import Trainer

    seed = common.seed or 0
    if common.start_from is None:
        return Trainer(problems, config, seed=seed)
    content, network = load_policy(common.start_from)
    theirs = content.config
    # The policy's network replaces the preset's.
    names = ("hidden", "layers", "heads", "graph_network", "attention", "lookahead", "masks")
    config = config.changed(**{name: getattr(theirs, name) for name in names})
    return Trainer(problems, config, seed=seed, weights=network.state_dict())


def _demonstrate(trainer: Trainer, common: Common, deadline: Deadline, cancel: threading.Event) -> None:
    """Teach the trainer plans from files, and plans that are found now."""
    from stowplan.models.modulo_scheduling.plan import Plan
    from stowplan.portfolio.solve import solve

    digests = [problem.digest for problem in trainer.problems]
    for path in common.demonstrations:
        plan = Plan.load(path)
        try:
            for number in demonstrated(digests, plan.problem, plan.name, path):
                trainer.demonstrate(number, plan)
        except InputError as error:
            raise error.within(path) from error
    for number, problem in enumerate(trainer.problems):
        limit = common.seconds_to_demonstrate(deadline, len(trainer.problems) - number)
        if limit is None:
            return
        plan = solve(problem, time_limit=limit, candidates="heuristic", seed=common.seed or 0, cancel=cancel).plan
        if plan is not None:
            trainer.demonstrate(number, plan)


def _report(trainer: Trainer, plans: Sequence[Any], trained: Training, as_json: bool) -> None:
    if as_json:
        say_json(
            {
                "outcome": trained.outcome,
                "steps": trainer.steps,
                "episodes": trainer.episodes,
                "training_steps": trainer.rounds + trainer.imitated,
                "seconds": round(trainer.seconds, 3),
                "policy_sha256": trained.policy_sha256,
                "graphs": [
                    {
                        "graph": problem.name,
                        "problem": problem.digest,
                        "instructions": len(problem.instructions),
                        "least_ii": trainer.curriculum.least[number],
                        "ii": None if plan is None else plan.ii,
                        "latency": None if plan is None else plan.makespan,
                    }
                    for number, (problem, plan) in enumerate(zip(trainer.problems, plans, strict=True))
                ],
            }
        )
        return
    head = f"{trainer.steps} placements in {trainer.episodes} mappings, {trainer.imitated} steps of imitation"
    lines = [f"{head}, {trainer.seconds:.1f} s ({trained.outcome})"]
    for problem, plan in zip(trainer.problems, plans, strict=True):
        best = "no mapping completed" if plan is None else f"II {plan.ii}, latency {plan.makespan}"
        lines.append(f"  {files.printable(problem.name)}: {best}, {len(problem.instructions)} instructions")
    lines += trained.remarks(f"{trainer.config.steps} placements", "--steps")
    say("\n".join(lines))
