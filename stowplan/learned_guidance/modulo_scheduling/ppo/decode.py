"""From a network's scores to complete mappings: many mappings grow side by side, the likeliest place or one drawn at each step.

Nothing is taken back. Of mappings of one problem at one initiation interval, one that is stuck can go on as a copy of one that
is not (a particle filter's resampling): all placements then lead somewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from stowplan.learned_guidance.modulo_scheduling.observation import Limits, observe
from stowplan.learned_guidance.modulo_scheduling.ppo.network import Network, as_tensors
from stowplan.learned_guidance.modulo_scheduling.state import Body, Mapping

#: Mappings that one forward pass takes.
BATCH = 128


@dataclass
class Decoder:
    """Places with a network.

    Parameters
    ----------
    temperature
        Of the scores that places are drawn by; 0 takes the likeliest.
    """

    network: Network
    temperature: float = 1.0
    placements: int = 0
    """So far."""

    def place(
        self,
        mappings: Sequence[Mapping],
        chance: np.random.Generator,
        *,
        resample: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[Mapping]:
        """Place what is left of each mapping, in step, until it is complete or stuck.

        Parameters
        ----------
        resample
            Whether a mapping that is stuck becomes a copy of one of the others that is not; they must be of one problem at one
            interval, with as much to place.
        stop
            Asked at each step.

        Returns
        -------
        list
            The mappings, as many and in their order; where ``resample`` has replaced one, the copy. They are placed in place.
        """
        found = list(mappings)
        if not found:
            return found
        problems = {id(each.problem): each.problem for each in found}
        limits = Limits.of(list(problems.values()), max(each.ii for each in found))
        first: dict[int, int] = {}
        for at, each in enumerate(found):
            first.setdefault(id(each.problem), at)
        row = {key: number for number, key in enumerate(first)}
        with torch.inference_mode():
            shown = [observe(found[at], limits) for at in first.values()]
            graphs = self.network.embed(as_tensors({name: np.stack([each[name] for each in shown]) for name in shown[0]}))
            while not stop():
                going = [at for at, each in enumerate(found) if each.current >= 0 and not each.stuck]
                if not going:
                    break
                if resample:
                    for at, each in enumerate(found):
                        if each.stuck:
                            found[at] = found[going[int(chance.integers(len(going)))]].copy()
                    going = [at for at, each in enumerate(found) if each.current >= 0]
                for begin in range(0, len(going), BATCH):
                    part = going[begin : begin + BATCH]
                    self._step([found[at] for at in part], limits, graphs[[row[id(found[at].problem)] for at in part]], chance)
        return found

    def _step(self, mappings: list[Mapping], limits: Limits, embedded: torch.Tensor, chance: np.random.Generator) -> None:
        shown = [observe(each, limits) for each in mappings]
        batch = {name: np.stack([each[name] for each in shown]) for name in shown[0]}
        scores = self.network(as_tensors(batch), embedded)[0].numpy()
        scores = np.where(batch["mask"] > 0, scores, -np.inf).reshape(len(mappings), -1)
        if self.temperature:
            # The largest of scores with Gumbel noise is a draw from their softmax.
            scores = scores / self.temperature + chance.gumbel(size=scores.shape)
        for mapping, action in zip(mappings, scores.argmax(axis=1).tolist(), strict=True):
            mapping.place(*divmod(action, limits.slots))
        self.placements += len(mappings)


def best_of(mappings: Sequence[Mapping]) -> Mapping | None:
    """The complete mapping of least makespan; None where none is complete."""
    return min((each for each in mappings if each.current < 0), key=lambda each: each.makespan, default=None)


def particles(body: Body, ii: int, count: int) -> list[Mapping]:
    """So many empty mappings of one problem at one interval."""
    first = Mapping(body, ii)
    return [first, *(first.copy() for _ in range(count - 1))]
