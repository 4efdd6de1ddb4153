"""Who places instructions: what a policy offers, and a control that knows nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from stowplan.learned_guidance.modulo_scheduling.observation import Limits, observe
from stowplan.learned_guidance.modulo_scheduling.state import Mapping
from stowplan.models.modulo_scheduling.machine import Machine
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Problem


def never() -> bool:
    """Do not stop."""
    return False


class Player(Protocol):
    """Places what is left of many mappings, side by side."""

    def place(
        self,
        mappings: Sequence[Mapping],
        chance: np.random.Generator,
        *,
        temperature: float = 1.0,
        resample: bool = False,
        stop: Callable[[], bool] = never,
    ) -> list[Mapping]:
        """Place until each mapping is complete or stuck.

        Parameters
        ----------
        mappings
            Of one problem at one interval where ``resample``; any others may be mixed. They are placed in place.
        temperature
            Of the draws; 0 takes the likeliest.
        resample
            Whether a mapping that is stuck becomes a copy of one of the others that is not.
        stop
            Asked at each step; what is placed by then is returned as it is.

        Returns
        -------
        list
            As many mappings, in their order, copies in place of those that were replaced.
        """
        ...


class Policy(Player, Protocol):
    """A trained player, which can be trained on for one problem."""

    def fine_tune(
        self,
        problem: Problem,
        *,
        evaluations: int | None = None,
        seed: int = 0,
        demonstrations: Sequence[Plan] = (),
        should_stop: Callable[[], bool] | None = None,
        on_better: Callable[[Plan], None] | None = None,
    ) -> Any:
        """Train on until ``should_stop`` or so many roll-outs; ``on_better`` gets each plan better than those before.

        Returns something with the roll-outs made as ``evaluations``.
        """
        ...


class Uniform:
    """Any legal place is as likely as any other: the control beside every policy."""

    def place(
        self,
        mappings: Sequence[Mapping],
        chance: np.random.Generator,
        *,
        temperature: float = 1.0,
        resample: bool = False,
        stop: Callable[[], bool] = never,
    ) -> list[Mapping]:
        """See :class:`Player`; the temperature has no effect."""
        found = list(mappings)
        while not stop():
            going = [at for at, each in enumerate(found) if each.current >= 0 and not each.stuck]
            if not going:
                break
            if resample:
                for at, each in enumerate(found):
                    if each.stuck:
                        found[at] = found[going[int(chance.integers(len(going)))]].copy()
            for each in found:
                if each.current >= 0 and not each.stuck:
                    places = np.flatnonzero(each.mask())
                    tile, slot = divmod(int(places[int(chance.integers(len(places)))]), each.ii)
                    each.place(tile, slot)
        return found


def warm_up() -> None:
    """Compile mappings and what is seen of them, on a loop body of two instructions."""
    one = Instruction(id="one", op="add")
    two = Instruction(id="two", op="add", operands=(Operand(instruction="one"),))
    machine = Machine(name="one tile", rows=1, links=(), operations=())
    mapping = Mapping(Problem(instructions=(one, two), machine=machine), 2)
    observe(mapping, Limits.of([mapping.problem], 2))
    Uniform().place([mapping], np.random.default_rng(0))
