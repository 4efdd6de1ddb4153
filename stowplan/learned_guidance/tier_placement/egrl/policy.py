"""A trained graph network, which places any network of layers with one forward pass and decoding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from stowplan.errors import InputError
from stowplan.learned_guidance.tier_placement.decode import Decoder
from stowplan.learned_guidance.tier_placement.egrl.checkpoint import POLICY
from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig
from stowplan.learned_guidance.tier_placement.egrl.learner import Inputs
from stowplan.learned_guidance.tier_placement.egrl.network import Actor
from stowplan.learned_guidance.tier_placement.graph import Graph, graph_of
from stowplan.learned_guidance.training.checkpoint import Content, load_policy
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem

Floats = npt.NDArray[np.float32]


class Policy:
    """A trained graph network for any network of layers on a chip with the same number of tiers.

    Parameters
    ----------
    file
        Configuration and provenance. :meth:`load` reads them, and the graph network, from a policy file.
    actor
        The graph network.
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
            If it cannot be read, is not a policy file, is damaged or of another version, or has weights that do not fit the
            network that its configuration describes.
        """
        return cls(*load_policy(path, POLICY))

    def posterior(self, problem: Problem) -> Floats:
        """Return probabilities of tiers ``[N, 2, T]`` for the weights and the output of each layer, by one forward pass.

        Raises
        ------
        InputError
            If the problem has no node features or wrong ones (:func:`graph_of`), or if its chip has another number of tiers
            than the policy was trained for.
        """
        inputs = Inputs(self._graph(problem), self.actor.shape.depth)
        with torch.no_grad():
            logits = self.actor(inputs.state, inputs.structure)[0]
        probabilities: Floats = functional.softmax(logits, dim=-1).numpy()
        return probabilities

    def place(self, problem: Problem) -> Plan:
        """Make a plan by one forward pass and filling tiers (:mod:`stowplan.learned_guidance.tier_placement.decode`).

        Raises
        ------
        InputError
            As for :meth:`posterior`; or if no tier has room for a tensor.
        """
        probabilities = self.posterior(problem)
        return Decoder(problem).filled(probabilities)

    def _graph(self, problem: Problem) -> Graph:
        """Return the graph of a problem; raise the errors that :meth:`posterior` lists."""
        graph = graph_of(problem, self.config.features)
        if graph.tiers != self.actor.shape.tiers:
            raise InputError(
                f"found a chip of {graph.tiers} tiers, expected {self.actor.shape.tiers}, as the policy was trained with",
                place="tiers",
            )
        return graph
