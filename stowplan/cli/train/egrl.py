"""``stowplan train egrl``: EGRL for tier placement."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stowplan import arguments, files
from stowplan.cli.common import Quiet, files_of, with_input_options
from stowplan.cli.output import note, say, say_json
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
from stowplan.errors import InputError, UsageError
from stowplan.frontends.options import ReadOptions

if TYPE_CHECKING:
    from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig
    from stowplan.learned_guidance.tier_placement.egrl.trainer import Trainer

#: Options of inputs of other kinds.
_OF_OTHERS = ("cost_model", "stalls", "donation", "evictions", "prefetches", "cycles", "rules", "fixed", "op_table")

#: What the policy learns from demonstrations by, where nothing else is set.
IMITATION = 1.0


@with_input_options(without=_OF_OTHERS)
def egrl_command(
    networks: Annotated[
        list[Path],
        typer.Argument(
            metavar="NETWORK",
            help="Networks (layer files or ONNX models) or problem files of tier placement, as 'solve' takes.",
        ),
    ],
    output: Output,
    time_limit: TimeLimit = None,
    evaluations: Annotated[
        int | None,
        typer.Option(
            "--evaluations",
            metavar="N",
            help="Stop after this many evaluations of the chip, all networks together (default 4000), time limit or not.",
        ),
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    preset: Preset = None,
    method: Annotated[
        str | None,
        typer.Option("--method", metavar="NAME", help="egrl (the default), ea (evolution alone), pg (policy gradient alone)."),
    ] = None,
    settings: Settings = None,
    noise: Annotated[
        float | None,
        typer.Option("--noise", metavar="PART", help="Standard deviation of measurements, as a part of latency (default 0)."),
    ] = None,
    seed: Seed = None,
    demonstrations: Demonstrations = None,
    demonstrate: Annotated[
        float | None,
        typer.Option(
            "--demonstrate", metavar="SECONDS", help="Solve each network exactly for so long, and learn from the plan."
        ),
    ] = None,
    start_from: StartFrom = None,
    curve: Curve = None,
    policy: PolicyOutput = None,
    plans: Plans = None,
    save_every: SaveEvery = 60.0,
    as_json: AsJson = False,
    quiet: Quiet = False,
    *,
    options: ReadOptions,
) -> None:
    """Train EGRL to place the tensors of one or more networks.

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
    if noise is not None:
        arguments.number("--noise {}", noise, 0.0, 1.0)
    common.check(
        inputs=(*networks, *files_of(options)),
        fixed={"--preset": preset, "--method": method, "--set": settings, "--noise": noise},
    )
    with stopping() as cancel:
        from stowplan.learned_guidance.tier_placement.egrl.progress import COLUMNS
        from stowplan.learned_guidance.tier_placement.egrl.trainer import Trainer

        problems = _read(networks, options)
        deadline = common.within(Deadline(cancelled=cancel), began)
        if resume:
            changes = {} if evaluations is None else {"evaluations": evaluations}
            trainer = Trainer.resume(output, problems, changes=changes)
        else:
            config = _configured(preset, method, settings or (), evaluations, common)
            trainer = _new_trainer(problems, config, noise or 0.0, common)
            _demonstrate(trainer, common, deadline, cancel)
        if policy is not None and not trainer.has_network:
            raise UsageError("--policy: found chromosomes alone, expected a learner or graph networks in the population")
        trained = common.train(trainer, COLUMNS, cancel, began)
    if plans is not None:
        for number, network in enumerate(trainer.networks):
            plan = network.plan()
            if plan is not None:
                plan.save(numbered_plan(plans, number))
    _report(trainer, trained, as_json)
    raise typer.Exit(INTERRUPTED if cancel.is_set() else 0)


def _read(networks: list[Path], options: ReadOptions) -> list[Any]:
    from stowplan.frontends.read import open_input
    from stowplan.hardware.nnp_i.compiler import compiler_map
    from stowplan.learned_guidance.tier_placement.graph import graph_of
    from stowplan.models.tier_placement.problem import Problem

    problems: list[Problem] = []
    for path in networks:
        problem = open_input(path, options).problem
        if not isinstance(problem, Problem):
            raise InputError("found another kind of problem, expected tier placement (a network)", source=path)
        # What training asks of each of them, while it is known which file it is.
        try:
            tiers = graph_of(problem).tiers
            compiler_map(problem)
        except InputError as error:
            raise error.within(path) from error
        if problems and tiers != len(problems[0].tiers):
            message = f"found a chip of {tiers} tiers, expected {len(problems[0].tiers)} as of {networks[0]}"
            raise InputError(message, source=path, place="tiers")
        problems.append(problem)
    return problems


def _configured(
    preset: str | None, method: str | None, settings: Sequence[str], evaluations: int | None, common: Common
) -> EgrlConfig:
    from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig
    from stowplan.learned_guidance.training.settings import with_settings

    presets = {"cpu": EgrlConfig.cpu, "paper": EgrlConfig.paper}
    methods = {"egrl": EgrlConfig.changed, "ea": EgrlConfig.evolution_only, "pg": EgrlConfig.gradient_only}
    if (preset or "cpu") not in presets:
        raise UsageError(f"--preset: found {preset!r}, expected cpu or paper")
    if (method or "egrl") not in methods:
        raise UsageError(f"--method: found {method!r}, expected egrl, ea or pg")
    config = methods[method or "egrl"](presets[preset or "cpu"]())
    if (common.demonstrations or common.demonstrate is not None) and not config.imitation:
        config = config.changed(imitation=IMITATION)
    config = with_settings(config, settings)
    if (common.demonstrations or common.demonstrate is not None) and not config.learner:
        raise UsageError("--demonstrations and --demonstrate: found a method without a learner to learn from them")
    return config if evaluations is None else config.changed(evaluations=evaluations)


def _new_trainer(problems: list[Any], config: EgrlConfig, noise: float, common: Common) -> Trainer:
    from stowplan.learned_guidance.tier_placement.egrl.checkpoint import load_policy
    from stowplan.learned_guidance.tier_placement.egrl.trainer import Trainer

    seed = common.seed or 0
    if common.start_from is None:
        return Trainer(problems, config, seed=seed, noise=noise)
    content, actor = load_policy(common.start_from)
    theirs = content.config
    # The policy's network replaces the preset's.
    config = config.changed(features=theirs.features, hidden=theirs.hidden, heads=theirs.heads, depth=theirs.depth)
    weights = actor.row.detach().numpy()
    try:
        return Trainer(problems, config, seed=seed, noise=noise, weights=weights)
    except InputError as error:
        raise error.within(common.start_from) from error


def _demonstrate(trainer: Trainer, common: Common, deadline: Deadline, cancel: threading.Event) -> None:
    """Teach the trainer plans from files, and plans that are found now."""
    if not common.demonstrations and common.demonstrate is None:
        return
    from stowplan.models.tier_placement.plan import Plan
    from stowplan.portfolio.solve import solve

    problems = [network.problem for network in trainer.networks]
    for path in common.demonstrations:
        plan = Plan.load(path)
        numbers = demonstrated([problem.digest for problem in problems], plan.problem, plan.name, path)
        try:
            for number in numbers:
                trainer.demonstrate(number, plan)
        except InputError as error:
            raise error.within(path) from error
    for number, problem in enumerate(problems):
        limit = common.seconds_to_demonstrate(deadline, len(problems) - number)
        if limit is None:
            return
        plan = solve(problem, time_limit=limit, candidates="heuristic,exact", seed=common.seed or 0, cancel=cancel).plan
        try:
            if plan is not None:
                trainer.demonstrate(number, plan)
        except InputError as error:
            # Offsets that the chip's own compiler does not find.
            note(f"stowplan: the plan found of {files.printable(problem.name)} {error}: it is not learned from")


def _report(trainer: Trainer, trained: Training, as_json: bool) -> None:
    if as_json:
        say_json(
            {
                "outcome": trained.outcome,
                "evaluations": trainer.evaluations,
                "most_evaluations": trainer.config.evaluations,
                "generations": trainer.generations,
                "training_steps": trainer.learner.steps,
                "seconds": round(trainer.seconds, 3),
                "policy_sha256": trained.policy_sha256,
                "networks": [
                    {
                        "network": network.problem.name,
                        "problem": network.problem.digest,
                        "layers": len(network.problem.layers),
                        "evaluations": network.best.evaluations,
                        "compiler_ps": network.chip.compiler_ps,
                        "latency_ps": network.best.latency_ps,
                        "speedup": network.speedup,
                        "measured_speedup": network.best.speedup if network.best.tiers is not None else None,
                    }
                    for network in trainer.networks
                ],
            }
        )
        return
    head = f"{trainer.evaluations} evaluations in {trainer.generations} generations, {trainer.learner.steps} training steps"
    lines = [f"{head}, {trainer.seconds:.1f} s ({trained.outcome})"]
    for network in trainer.networks:
        best = "no map that can be executed" if network.speedup is None else f"best speedup {network.speedup:.4f}"
        name, count = files.printable(network.problem.name), len(network.problem.layers)
        lines.append(f"  {name}: {best}, {network.best.evaluations} evaluations, {count} layers")
    lines += trained.remarks(f"{trainer.config.evaluations} evaluations", "--evaluations")
    say("\n".join(lines))
