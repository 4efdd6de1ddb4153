"""What a hint's values say of the decisions of a CP-SAT model: which of them to fix, and in which order to branch.

To fix where the guess and a plan at hand agree, and to solve what is left, is relaxation induced neighbourhood search (Danna,
Rothberg and Le Pape, Mathematical Programming 102, 2005). What is fixed is a guess: nothing that the restricted model proves
says anything of all plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from stowplan.models.hint import TRUST, Hint
from stowplan.models.memory_mapping.accesses import TensorAccesses
from stowplan.models.memory_mapping.cpsat.variables import Variables
from stowplan.models.memory_mapping.hint import FAST, KEEP

#: A guess agrees with a plan where it is within so much of what the plan has.
AGREES = 0.1

#: A literal, and how much speaks for it.
Said = tuple[cp_model.IntVar, float]


class Guess:
    """The values of a hint by the uses of a program.

    Parameters
    ----------
    sequences
        Accesses of the program's tensors, in the order of a hint's values.
    hint
        With values, checked.
    """

    def __init__(self, sequences: Sequence[TensorAccesses], hint: Hint):
        count = sum(len(access.uses) for sequence in sequences for access in sequence.accesses)
        self._fast = np.full(count, np.nan)
        self._kept = np.full(count, np.nan)
        """By use: what speaks for keeping the tensor from the access before to that of the use; nan for the first one."""
        sure = hint.confidence or (1.0,) * len(hint.values[FAST])
        place = 0
        for sequence in sequences:
            for number, access in enumerate(sequence.accesses):
                for use in access.uses:
                    if sure[place] >= TRUST:
                        self._fast[use] = hint.values[FAST][place]
                    if number and sure[place - 1] >= TRUST:
                        self._kept[use] = hint.values[KEEP][place - 1]
                place += 1

    def said(self, variables: Variables, use_of: Sequence[int] | None = None) -> list[Said]:
        """Every literal of a model that the hint says something of.

        Parameters
        ----------
        variables
            Of the program, or of a part of it.
        use_of
            Of a part: for each of its uses that of the program, -1 for none.
        """
        found: list[Said] = []
        for tensor in variables.tensors:
            previous = -1
            for access, here in zip(tensor.sequence.accesses, tensor.access, strict=False):
                use = access.uses[0] if use_of is None else use_of[access.uses[0]]
                pairs = [(here.fast, self._fast[use])] if use >= 0 else []
                if use >= 0 and previous >= 0:
                    pairs.append((here.keep, self._kept[use]))
                found += [(literal, float(value)) for literal, value in pairs if literal is not None and not np.isnan(value)]
                previous = use
        return found


def fix(model: cp_model.CpModel, said: Sequence[Said], values: Mapping[int, int], agrees: float = AGREES) -> int:
    """Fix the literals of which a plan has what the guess says; returns how many.

    Parameters
    ----------
    model
        Is restricted: solutions of it are solutions, bounds and proofs of it are none.
    values
        Of the plan, by the index of each variable. It stays a solution.
    """
    fixed = {literal.index: literal for literal, value in said if abs(value - values[literal.index]) <= agrees}
    for literal in fixed.values():
        model.add(literal == values[literal.index])
    return len(fixed)


def branch(model: cp_model.CpModel, said: Sequence[Said]) -> dict[str, Any]:
    """Have CP-SAT branch as the guess says, the surest literal first; returns the parameters that make it heed that mostly."""
    ordered = sorted(said, key=lambda pair: -abs(pair[1] - 0.5))
    literals: list[Any] = [literal if value >= 0.5 else ~literal for literal, value in ordered]
    model.add_decision_strategy(literals, cp_model.CHOOSE_FIRST, cp_model.SELECT_MAX_VALUE)
    return {"search_branching": cp_model.PARTIAL_FIXED_SEARCH}
