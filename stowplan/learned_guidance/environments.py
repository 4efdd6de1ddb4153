"""The package's Gymnasium environments: importing this module registers them. And where they get their problems.

Without an import of one's own, put the module before the name, as Gymnasium allows since 1.0, where it gave up loading the
environments of installed packages by itself::

    gymnasium.make("stowplan.learned_guidance.environments:stowplan/MMapGame-v0")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import gymnasium
import numpy as np

from stowplan.document import Document
from stowplan.errors import InputError

P = TypeVar("P", bound=Document)
M = TypeVar("M")

#: A problem, the path of a problem file, several of them, or a function that draws a problem for each episode; None: a demo.
Given: TypeAlias = "P | str | Path | Sequence[P | str | Path] | Callable[[np.random.Generator], P] | None"


class ProblemSource(Generic[P]):
    """The problems of an environment's episodes.

    Parameters
    ----------
    given
        See :data:`Given`.
    kind
        Class of the problems.
    title
        Name of the kind, for messages.
    demo
        Makes the problem that is taken without any other.
    """

    def __init__(self, given: Given[P], kind: type[P], title: str, demo: Callable[[], P]):
        self._kind, self._title = kind, title
        self._made: dict[int, Any] = {}
        self.draw: Callable[[np.random.Generator], P] | None = None
        """Draws a problem for each episode."""
        self.problems: tuple[P, ...] = ()
        """What episodes are drawn from; none where a function draws them."""
        if given is None:
            self.problems = (demo(),)
        elif isinstance(given, (str, Path, kind)):
            self.problems = (self.read(given),)
        elif callable(given):
            self.draw = given
        elif isinstance(given, Sequence):
            self.problems = tuple(self.read(source) for source in given)
            if not self.problems:
                raise InputError("found no problems, expected at least one")
        else:
            self.read(given)

    def choose(self, options: Mapping[str, Any], rng: np.random.Generator) -> int | P:
        """The next episode's problem: its number among :attr:`problems`, or one from elsewhere.

        ``options`` are those of ``reset``: ``{"problem": ...}`` is a number, a problem or a path.
        """
        unknown = sorted(set(options) - {"problem"})
        if unknown:
            raise InputError(f"found reset option {unknown[0]!r}, expected 'problem'")
        wanted = options.get("problem")
        if wanted is None and self.draw is not None:
            return self.draw(rng)
        if wanted is None:
            wanted = rng.integers(len(self.problems)) if len(self.problems) > 1 else 0
        if not isinstance(wanted, (int, np.integer)):
            return self.read(wanted)
        if not 0 <= wanted < len(self.problems):
            raise InputError(f"found problem {wanted}, expected a number below {len(self.problems)}")
        return int(wanted)

    def made(self, options: Mapping[str, Any], rng: np.random.Generator, make: Callable[[P], M]) -> M:
        """What is made of the next episode's problem; of those in :attr:`problems` it is kept."""
        chosen = self.choose(options, rng)
        if not isinstance(chosen, int):
            return make(chosen)
        if chosen not in self._made:
            self._made[chosen] = make(self.problems[chosen])
        made: M = self._made[chosen]
        return made

    def read(self, source: object) -> P:
        """A problem, from its file where a path is given; InputError for anything else."""
        if isinstance(source, self._kind):
            return source
        if isinstance(source, (str, Path)):
            return self._kind.load(source)
        type_name = type(source).__name__
        raise InputError(f"found a problem of type {type_name}, expected a {self._title} Problem or the path of its file")


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """InputError where an option of an environment is none of its choices."""
    if value not in choices:
        raise InputError(f"found {name}={value!r}, expected one of {', '.join(map(repr, choices))}")


#: Memory mapping, played move by move: :class:`~stowplan.learned_guidance.memory_mapping.environment.MMapGameEnv`.
MMAP_GAME = "stowplan/MMapGame-v0"

#: Tier placement, a whole map at once: :class:`~stowplan.learned_guidance.tier_placement.environment.TierPlacementEnv`.
TIER_PLACEMENT = "stowplan/TierPlacement-v0"

#: Modulo scheduling, instruction by instruction:
#: :class:`~stowplan.learned_guidance.modulo_scheduling.environment.ModuloSchedulingEnv`.
MODULO_SCHEDULING = "stowplan/ModuloScheduling-v0"

for _name, _entry_point in {
    MMAP_GAME: "stowplan.learned_guidance.memory_mapping.environment:MMapGameEnv",
    TIER_PLACEMENT: "stowplan.learned_guidance.tier_placement.environment:TierPlacementEnv",
    MODULO_SCHEDULING: "stowplan.learned_guidance.modulo_scheduling.environment:ModuloSchedulingEnv",
}.items():
    # A second import, as after importlib.reload, must not warn of an environment overridden by itself.
    if _name not in gymnasium.registry:
        gymnasium.register(id=_name, entry_point=_entry_point)
