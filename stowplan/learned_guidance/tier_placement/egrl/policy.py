"""A trained graph network on networks it may not have seen: one forward pass, decoded; and training on, on one of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from stowplan.errors import InputError
from stowplan.learned_guidance.tier_placement.decode import Decoder
from stowplan.learned_guidance.tier_placement.egrl.checkpoint import load_policy
from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig
from stowplan.learned_guidance.tier_placement.egrl.learner import Inputs
from stowplan.learned_guidance.tier_placement.egrl.network import Actor
from stowplan.learned_guidance.tier_placement.egrl.population import Chromosome, Member
from stowplan.learned_guidance.tier_placement.egrl.trainer import Trainer
from stowplan.learned_guidance.tier_placement.graph import Graph, graph_of
from stowplan.learned_guidance.training.checkpoint import Content
from stowplan.learned_guidance.training.run import run
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem

Floats = npt.NDArray[np.float32]
Stop = Callable[[], bool]

#: Part of the graph networks, and of the chromosomes, of the first population that begin with what the policy knows.
KNOWING = 0.5

#: Evaluations where others end the training.
_ENDLESS = 1 << 40


@dataclass(frozen=True, eq=False)
class FineTuned:
    """What further training on one network came to."""

    best: Plan | None
    """The best map found on the way; None where none was evaluated."""
    trainer: Trainer
    """To go on training, or to save its policy."""


class Policy:
    """A trained graph network, ready for any network of layers on a chip of as many tiers.

    Parameters
    ----------
    file
        Configuration and provenance.
    actor
        The graph network; :meth:`load` reads both.
    """

    def __init__(self, file: Content[EgrlConfig], actor: Actor):
        self.file = file
        self.config = file.config
        self.actor = actor.eval()

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Read a policy file.

        Raises
        ------
        InputError
            It is no policy file, damaged, or of another version, or its weights do not fit its sizes.
        """
        return cls(*load_policy(path))

    @property
    def digest(self) -> str:
        """sha256 of the policy file, for the provenance of a result."""
        return self.file.digest

    def posterior(self, problem: Problem) -> Floats:
        """Probabilities of tiers ``[N, 2, T]``, for the weights and for the output of each layer: one forward pass.

        Raises
        ------
        InputError
            The problem has no node features, or a chip of another number of tiers than the policy was trained for.
        """
        inputs = Inputs(self._graph(problem), self.actor.shape.depth)
        with torch.no_grad():
            logits = self.actor(inputs.state, inputs.structure)[0]
        found: Floats = functional.softmax(logits, dim=-1).numpy()
        return found

    def place(self, problem: Problem) -> Plan:
        """The plan of one forward pass, with its tiers filled (:mod:`stowplan.learned_guidance.tier_placement.decode`).

        Raises
        ------
        InputError
            As :meth:`posterior`; or no tier has room for a tensor.
        """
        probabilities = self.posterior(problem)
        return Decoder(problem).filled(probabilities)

    def fine_tune(
        self,
        problem: Problem,
        *,
        evaluations: int | None = None,
        seed: int = 0,
        demonstrations: Sequence[Plan] = (),
        should_stop: Stop | None = None,
        on_better: Callable[[Plan], None] | None = None,
    ) -> FineTuned:
        """Train on from this policy's weights on one network, and keep the best map that is evaluated on the way.

        The learner and :data:`KNOWING` of the population's graph networks begin with the weights; as many chromosomes with the
        map of one forward pass.

        Parameters
        ----------
        evaluations, should_stop
            What ends it: maps proposed to the chip, a callback. Without either, the evaluations that it was trained with.
        demonstrations
            Plans of the network to learn from.
        on_better
            Called after each generation, and at the end, with a plan that is better than all before.

        Returns
        -------
        FineTuned
            The plan of the best map of all evaluated, and the trainer.

        Raises
        ------
        InputError
            As :meth:`posterior`; or a demonstration is no plan of the network that can be executed as it is.
        """
        self._graph(problem)
        if evaluations is None:
            evaluations = self.config.evaluations if should_stop is None else _ENDLESS
        weights: Floats = self.actor.row.detach().numpy().copy()
        trainer = Trainer([problem], self.config.changed(evaluations=evaluations), seed=seed, weights=weights)
        trainer.members = self._knowing(trainer.members, weights, problem)
        for plan in demonstrations:
            trainer.demonstrate(0, plan)
        network = trainer.networks[0]
        reported = network.best.latency_ps

        def report(_: object = None) -> None:
            nonlocal reported
            if on_better is not None and network.best.latency_ps != reported:
                reported, found = network.best.latency_ps, network.plan()
                assert found is not None
                on_better(found)

        run(trainer, should_stop=should_stop, on_progress=report)
        report()
        return FineTuned(network.plan(), trainer)

    def _knowing(self, members: list[Member], weights: Floats, problem: Problem) -> list[Member]:
        """A first population, with some of its members in place of random ones."""
        plan = self.place(problem)
        tiers = np.array([plan.weight_tiers, plan.output_tiers], np.int64).T
        believed = Chromosome.believing(tiers, self.actor.shape.tiers, self.config.least_temperature)
        found = list(members)
        for is_chromosome, known in ((False, Member(weights)), (True, Member(believed))):
            places = [at for at, member in enumerate(members) if member.is_chromosome == is_chromosome]
            for at in places[: math.ceil(KNOWING * len(places))]:
                found[at] = known
        return found

    def _graph(self, problem: Problem) -> Graph:
        graph = graph_of(problem, self.config.features)
        if graph.tiers != self.actor.shape.tiers:
            raise InputError(
                f"found a chip of {graph.tiers} tiers, expected {self.actor.shape.tiers}, as the policy was trained with",
                place="tiers",
            )
        return graph
