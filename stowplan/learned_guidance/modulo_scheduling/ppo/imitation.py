"""Learning from plans that something else found, before any place is tried: cross entropy of the places that plans chose."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from stowplan.errors import InputError
from stowplan.learned_guidance.modulo_scheduling.observation import Limits, Observation, observe
from stowplan.learned_guidance.modulo_scheduling.ppo.network import Network, as_tensors
from stowplan.learned_guidance.modulo_scheduling.state import Body, Mapping

#: Steps of one plan in a batch.
TOGETHER = 12


class Examples:
    """Steps of mappings, each with the place to choose."""

    def __init__(self, limits: Limits):
        self.limits = limits
        self._plans: list[tuple[list[Observation], list[int]]] = []

    def __len__(self) -> int:
        return len(self._plans)

    def add(self, body: Body, ii: int, tiles: Sequence[int], slots: Sequence[int], digest: str | None = None) -> None:
        """The steps of a plan: its interval, and the tile and slot of each instruction.

        Raises
        ------
        InputError
            ``digest``, where it is given, is another problem's; the plan breaks a rule, or does not fit the limits.
        """
        if digest not in (None, body.problem.digest):
            raise InputError(f"is a plan of another problem, expected one of {body.problem.name}")
        mapping = Mapping(body, ii)
        steps: list[tuple[Observation, int]] = []
        while mapping.current >= 0:
            tile, slot = tiles[mapping.current], slots[mapping.current]
            steps.append((observe(mapping, self.limits), tile * self.limits.slots + slot))
            try:
                mapping.place(tile, slot)
            except ValueError as error:
                raise InputError(f"is no plan that can be followed step by step: {error}") from error
        if steps:
            self._plans.append(([seen for seen, _ in steps], [action for _, action in steps]))

    def batch(self, size: int, chance: np.random.Generator) -> tuple[dict[str, Tensor], Tensor]:
        """So many steps: up to :data:`TOGETHER` of each plan drawn, since its graph is looked at once for all."""
        seen: list[Observation] = []
        actions: list[int] = []
        while len(seen) < size:
            theirs, chosen = self._plans[int(chance.integers(len(self._plans)))]
            count = min(TOGETHER, len(theirs), size - len(seen))
            for at in chance.choice(len(theirs), count, replace=False):
                seen.append(theirs[at])
                actions.append(chosen[at])
        arrays = {name: np.stack([each[name] for each in seen]) for name in seen[0]}
        return as_tensors(arrays), torch.tensor(actions)


def imitate(network: Network, optimizer: torch.optim.Optimizer, batch: tuple[dict[str, Tensor], Tensor], clip: float) -> float:
    """One step of the optimizer; the cross entropy before it."""
    seen, actions = batch
    scores = network(seen)[0].flatten(1)
    if network.shape.masks:
        scores = scores.masked_fill(seen["mask"].flatten(1) == 0, -1e8)
    loss = torch.nn.functional.cross_entropy(scores, actions)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(network.parameters(), clip)
    optimizer.step()
    return float(loss.detach())
