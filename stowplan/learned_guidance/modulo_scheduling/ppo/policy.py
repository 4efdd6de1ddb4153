"""A trained mapper, which can map any loop body, also one that it was not trained on.

It completes many mappings side by side, with one forward pass for each step of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from stowplan.learned_guidance.modulo_scheduling.observation import Observation, observe
from stowplan.learned_guidance.modulo_scheduling.ppo.config import POLICY, PpoConfig
from stowplan.learned_guidance.modulo_scheduling.ppo.network import Network, as_tensors
from stowplan.learned_guidance.modulo_scheduling.state import Choice, Mapping, Player
from stowplan.learned_guidance.modulo_scheduling.view import Limits
from stowplan.learned_guidance.training.checkpoint import Content, load_policy

#: Largest number of mappings in one forward pass.
BATCH = 128


def _batch(observations: Sequence[Observation]) -> dict[str, torch.Tensor]:
    """Return observations as one batch of tensors."""
    return as_tensors({name: np.stack([observation[name] for observation in observations]) for name in observations[0]})


class Policy(Player):
    """A trained network for any loop body on a machine of any size.

    Parameters
    ----------
    network
        Actor and critic.
    file
        Configuration and provenance, as :meth:`load` reads them from a policy file; None for an untrained network.
    """

    def __init__(self, network: Network, file: Content[PpoConfig] | None = None):
        self.network, self.file = network.eval(), file

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Read a policy file.

        Raises
        ------
        InputError
            If it is not a policy file, is damaged or of another version, or its weights do not fit its sizes.
        """
        content, network = load_policy(path, POLICY)
        return cls(network, content)

    def choice(self, mappings: Sequence[Mapping], rng: np.random.Generator, temperature: float) -> Choice:
        """Return the function that chooses places with the network. It embeds each graph once for all steps. Raise ValueError
        if there are no mappings."""
        problems = {id(mapping.problem): mapping for mapping in mappings}
        limits = Limits.of([mapping.problem for mapping in problems.values()], max(mapping.ii for mapping in mappings))
        row = {key: number for number, key in enumerate(problems)}
        with torch.inference_mode():
            graphs = self.network.embed(_batch([observe(mapping, limits) for mapping in problems.values()]))

        def choose(active: Sequence[Mapping]) -> list[tuple[int, int]]:
            places: list[tuple[int, int]] = []
            for begin in range(0, len(active), BATCH):
                part = active[begin : begin + BATCH]
                batch = _batch([observe(mapping, limits) for mapping in part])
                with torch.inference_mode():
                    scores = self.network(batch, graphs[[row[id(mapping.problem)] for mapping in part]])[0].numpy()
                scores = np.where(batch["mask"].numpy() > 0, scores, -np.inf).reshape(len(part), -1)
                if temperature:
                    # The argmax of scores plus Gumbel noise is a draw from their softmax.
                    scores = scores / temperature + rng.gumbel(size=scores.shape)
                places += [divmod(action, limits.slots) for action in scores.argmax(axis=1).tolist()]
            return places

        return choose
