"""The command ``stowplan train egrl``: EGRL for tier placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stowplan.cli.options import FAST_MEMORY, chip_target, option
from stowplan.cli.train import Training, command
from stowplan.errors import InputError, UsageError

if TYPE_CHECKING:
    from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig
    from stowplan.learned_guidance.tier_placement.egrl.trainer import Trainer
    from stowplan.models.tier_placement.problem import Problem

#: Weight of the imitation loss if there are demonstrations and no other weight is set.
IMITATION = 1.0


@dataclass(kw_only=True)
class _Training(Training["Trainer"]):
    """Train EGRL, which places the tensors of networks.

    The agent decides in which level of a chip's memory hierarchy (tier) each tensor is. EGRL (evolutionary graph reinforcement
    learning) combines an evolutionary search with a policy gradient method. docs/reference/egrl.md describes the agent and its
    hyperparameters.
    """

    KIND = ("tier placement", "a network")
    INPUTS = ("target", "capacity", "precision", "granularity", "address_spaces")
    TEXTS = FAST_MEMORY | chip_target("networks", "NETWORK")
    AMOUNT, AMOUNT_IN_CONFIG, UNIT = "evaluations", "evaluations", "evaluations"
    CANDIDATES = "heuristic,exact"
    NETWORK = ("features", "hidden", "heads", "depth")

    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="NETWORK...",
            help="Networks, which are ONNX models or lists of layers in JSON (docs/reference/networks.md); or problem files "
            "of tier placement.",
        ),
    ]
    evaluations: Annotated[
        int | None,
        option(
            "--evaluations",
            "N",
            "Stop after this many evaluations, even before the time limit; 4000 by default, for all networks together. In "
            "an evaluation, a simulator computes how fast a network runs with one placement.",
        ),
    ] = None
    method: Annotated[
        str | None,
        option(
            "--method",
            "NAME",
            "Learning method: egrl, ea or pg. egrl, the default, combines the other two: ea is the evolutionary search "
            "alone, and pg is the policy gradient alone.",
        ),
    ] = None
    demonstrate: Annotated[
        float | None,
        option(
            "--demonstrate",
            "SECONDS",
            "Before training, search for a plan of each network for this long, with heuristics and exact solvers, and "
            "learn from the result. By default, there is no such search. With --time-limit, all searches together take "
            "about 40 % of that limit at most.",
        ),
    ] = None

    @property
    def trainer(self) -> type[Trainer]:
        from stowplan.learned_guidance.tier_placement.egrl.trainer import Trainer

        return Trainer

    @property
    def fixed_options(self) -> dict[str, Any]:
        return {"--method": self.method}

    def check_problem(self, problem: Problem, others: Sequence[Problem]) -> None:
        from stowplan.hardware.nnp_i.compiler import compiler_map
        from stowplan.learned_guidance.tier_placement.graph import graph_of

        tiers = graph_of(problem).tiers
        compiler_map(problem)
        if others and tiers != len(others[0].tiers):
            message = f"found a chip of {tiers} tiers, expected {len(others[0].tiers)} as of {self.sources[0]}"
            raise InputError(message, place="tiers")

    def adjusted_config(self, config: EgrlConfig) -> EgrlConfig:
        methods = {"egrl": config.changed, "ea": config.evolution_only, "pg": config.gradient_only}
        if (self.method or "egrl") not in methods:
            raise UsageError(f"--method: found {self.method!r}, expected egrl, ea or pg")
        config = methods[self.method or "egrl"]()
        is_shown = bool(self.demonstrations) or self.demonstrate is not None
        return config.changed(imitation=IMITATION) if is_shown and not config.imitation else config

    def weights(self, network: Any) -> Any:
        return network.row.detach().numpy()

    def new_trainer(self, problems: list[Any], config: EgrlConfig) -> Trainer:
        if (self.demonstrations or self.demonstrate is not None) and not config.learner:
            raise UsageError("--demonstrations and --demonstrate: found a method without a learner to learn from them")
        return super().new_trainer(problems, config)

    def check_trainer(self, trainer: Trainer) -> None:
        if self.policy is not None and not trainer.has_network:
            raise UsageError("--policy: found chromosomes alone, expected a learner or graph networks in the population")

    def figures(self, trainer: Trainer) -> dict[str, Any]:
        return {
            "evaluations": trainer.evaluations,
            "most_evaluations": trainer.config.evaluations,
            "generations": trainer.generations,
            "training_steps": trainer.learner.steps,
        }

    def headline(self, trainer: Trainer) -> str:
        steps = trainer.learner.steps
        return f"{trainer.evaluations} evaluations in {trainer.generations} generations, {steps} training steps"

    def rows(self, trainer: Trainer) -> tuple[str, list[dict[str, Any]]]:
        return "networks", [
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
        ]

    def line(self, row: dict[str, Any]) -> str:
        best = "no map that can be executed" if row["speedup"] is None else f"best speedup {row['speedup']:.4f}"
        return f"{best}, {row['evaluations']} evaluations, {row['layers']} layers"


train_egrl_command = command(_Training)
