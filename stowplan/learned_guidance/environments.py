"""Registers the package's Gymnasium environments, and provides the problems that are solved in their episodes.

Importing this module registers the environments, which Gymnasium does not do by itself for installed packages since version
1.0. If the name of an environment is preceded by the name of this module, Gymnasium imports the module::

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

#: The problems of an environment: a problem, the path of a problem file, several of them, or a function that draws a problem
#: for each episode. None stands for a small demonstration problem.
Given: TypeAlias = "P | str | Path | Sequence[P | str | Path] | Callable[[np.random.Generator], P] | None"


class ProblemSource(Generic[P]):
    """The problems of an environment's episodes.

    Parameters
    ----------
    given
        The problems, as :data:`Given` describes them.
    kind
        Class of the problems.
    title
        Name of the kind, for error messages.
    demo
        Returns the problem that is used if none is given.

    Raises
    ------
    InputError
        A problem cannot be read or is of another kind, or the sequence of problems is empty.
    """

    def __init__(self, given: Given[P], kind: type[P], title: str, demo: Callable[[], P]):
        self._kind, self._title = kind, title
        self._results: dict[int, Any] = {}
        """The results of :meth:`made` for problems in ``problems``, by their number."""
        self.draw: Callable[[np.random.Generator], P] | None = None
        """The function that draws a problem for each episode, if there is one."""
        self.problems: tuple[P, ...] = ()
        """The problems that episodes are drawn from; empty if a function draws them."""
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
        """Chooses the problem of the next episode; returns its number if it is one of :attr:`problems`, otherwise the problem.

        ``options`` are those of the environment's method ``reset``. The option ``"problem"`` may be a number, a problem, or the
        path of a problem file. Without it, the problem is drawn. Raises InputError for another option or value.
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
        """Chooses the problem of the next episode, as :meth:`choose` does, and returns ``make(problem)``.

        For a problem in :attr:`problems`, ``make`` is called once, and its result is used again in later episodes. Raises the
        errors of :meth:`choose` and of ``make``.
        """
        chosen = self.choose(options, rng)
        if not isinstance(chosen, int):
            return make(chosen)
        if chosen not in self._results:
            self._results[chosen] = make(self.problems[chosen])
        result: M = self._results[chosen]
        return result

    def read(self, source: object) -> P:
        """Returns ``source`` itself if it is a problem, or reads the problem from the file if ``source`` is a path.

        Raises InputError for anything else, or if the file cannot be read or has another kind of problem.
        """
        if isinstance(source, self._kind):
            return source
        if isinstance(source, (str, Path)):
            return self._kind.load(source)
        type_name = type(source).__name__
        raise InputError(f"found a problem of type {type_name}, expected a {self._title} Problem or the path of its file")


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise InputError, which names the option, if the value of an environment's option is none of its choices."""
    if value not in choices:
        raise InputError(f"found {name}={value!r}, expected one of {', '.join(map(repr, choices))}")


#: Memory mapping, in which each action is one move of the game:
#: :class:`~stowplan.learned_guidance.memory_mapping.environment.MMapGameEnv`.
MMAP_GAME = "stowplan/MMapGame-v0"

#: Tier placement, in which one action places all tensors:
#: :class:`~stowplan.learned_guidance.tier_placement.environment.TierPlacementEnv`.
TIER_PLACEMENT = "stowplan/TierPlacement-v0"

#: Modulo scheduling, in which each action places one instruction:
#: :class:`~stowplan.learned_guidance.modulo_scheduling.environment.ModuloSchedulingEnv`.
MODULO_SCHEDULING = "stowplan/ModuloScheduling-v0"

for _name, _entry_point in {
    MMAP_GAME: "stowplan.learned_guidance.memory_mapping.environment:MMapGameEnv",
    TIER_PLACEMENT: "stowplan.learned_guidance.tier_placement.environment:TierPlacementEnv",
    MODULO_SCHEDULING: "stowplan.learned_guidance.modulo_scheduling.environment:ModuloSchedulingEnv",
}.items():
    # A second import, for example by importlib.reload, must not warn that an environment is registered twice.
    if _name not in gymnasium.registry:
        gymnasium.register(id=_name, entry_point=_entry_point)
