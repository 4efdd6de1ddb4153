"""A trained mapper on loop bodies it may not have seen, without what trained it; and training on, on one of them.

Many mappings grow side by side, one forward pass for a step of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from stowplan.learned_guidance.modulo_scheduling.body import Body
from stowplan.learned_guidance.modulo_scheduling.observation import Observation, observe
from stowplan.learned_guidance.modulo_scheduling.ppo.config import PpoConfig, load_policy
from stowplan.learned_guidance.modulo_scheduling.ppo.network import Network, as_tensors
from stowplan.learned_guidance.modulo_scheduling.rollouts import Choice, Player
from stowplan.learned_guidance.modulo_scheduling.state import Mapping
from stowplan.learned_guidance.modulo_scheduling.view import Limits
from stowplan.learned_guidance.training.checkpoint import Content
from stowplan.learned_guidance.training.run import FineTuned, fine_tune
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem

if TYPE_CHECKING:
    from stowplan.learned_guidance.modulo_scheduling.ppo.trainer import Trainer

#: Mappings that one forward pass takes.
BATCH = 128


def _batch(shown: Sequence[Observation]) -> dict[str, torch.Tensor]:
    return as_tensors({name: np.stack([each[name] for each in shown]) for name in shown[0]})


def best_of(mappings: Sequence[Mapping]) -> Mapping | None:
    """The complete mapping of least makespan; None where none is complete."""
    return min((each for each in mappings if each.current < 0), key=lambda each: each.makespan, default=None)


def particles(body: Body, ii: int, count: int) -> list[Mapping]:
    """So many empty mappings of one problem at one interval."""
    first = Mapping(body, ii)
    return [first, *(first.copy() for _ in range(count - 1))]


Stop = Callable[[], bool]

#: Placements where others end the training.
_ENDLESS = 1 << 40


class Policy(Player):
    """A trained network, ready for any loop body on a machine of any size.

    Parameters
    ----------
    network
        Actor and critic.
    file
        Configuration and provenance; :meth:`load` reads both. None for a network that was never trained.
    """

    def __init__(self, network: Network, file: Content[PpoConfig] | None = None):
        self.network, self.file = network.eval(), file

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Read a policy file.

        Raises
        ------
        InputError
            It is no policy file, damaged, or of another version, or its weights do not fit its sizes.
        """
        content, network = load_policy(path)
        return cls(network, content)

    @property
    def digest(self) -> str | None:
        """sha256 of the policy file, for the provenance of a result."""
        return None if self.file is None else self.file.digest

    def choice(self, mappings: Sequence[Mapping], rng: np.random.Generator, temperature: float) -> Choice:
        """The network's places; every graph is looked at once for all steps."""
        problems = {id(each.problem): each for each in mappings}
        limits = Limits.of([each.problem for each in problems.values()], max(each.ii for each in mappings))
        row = {key: number for number, key in enumerate(problems)}
        with torch.inference_mode():
            graphs = self.network.embed(_batch([observe(each, limits) for each in problems.values()]))

        def chosen(going: Sequence[Mapping]) -> list[tuple[int, int]]:
            found: list[tuple[int, int]] = []
            for begin in range(0, len(going), BATCH):
                part = going[begin : begin + BATCH]
                shown = _batch([observe(each, limits) for each in part])
                with torch.inference_mode():
                    scores = self.network(shown, graphs[[row[id(each.problem)] for each in part]])[0].numpy()
                scores = np.where(shown["mask"].numpy() > 0, scores, -np.inf).reshape(len(part), -1)
                if temperature:
                    # The largest of scores with Gumbel noise is a draw from their softmax.
                    scores = scores / temperature + rng.gumbel(size=scores.shape)
                found += [divmod(action, limits.slots) for action in scores.argmax(axis=1).tolist()]
            return found

        return chosen

    def fine_tune(
        self,
        problem: Problem,
        *,
        evaluations: int | None = None,
        time_limit: float | None = None,
        seed: int = 0,
        demonstrations: Sequence[Plan] = (),
        changes: dict[str, Any] | None = None,
        should_stop: Stop | None = None,
        on_better: Callable[[Plan], None] | None = None,
    ) -> FineTuned[Plan, Trainer]:
        """Train on from this policy's weights on one loop body, and keep the best plan of the way.

        Parameters
        ----------
        evaluations, time_limit, should_stop
            What ends it: mappings, in placements of all instructions; seconds; a callback. Without any, the placements that it
            was trained with.
        demonstrations
            Plans of the loop body to imitate first.
        changes
            Fields of the training configuration to change.
        on_better
            Called with a plan that is better than all before.

        Raises
        ------
        InputError
            The loop body cannot be mapped, or a demonstration is no plan of it.
        """
        from stowplan.learned_guidance.modulo_scheduling.ppo.trainer import Trainer

        config = PpoConfig.cpu() if self.file is None else self.file.config
        changes = dict(changes or {})
        if evaluations is not None:
            changes["steps"] = evaluations * max(1, len(problem.instructions))
        elif time_limit is not None or should_stop is not None:
            changes["steps"] = _ENDLESS
        changes.setdefault("imitation_steps", 100)
        trainer = Trainer([problem], config.changed(**changes), seed=seed, weights=self.network.state_dict())
        for plan in demonstrations:
            trainer.demonstrate(0, plan)
        return fine_tune(
            trainer,
            lambda: trainer.plan(0),
            lambda: trainer.curriculum.objectives[0],
            time_limit=time_limit,
            should_stop=should_stop,
            on_better=on_better,
        )
