"""Flags of the compiler that change the program before its memory-space assignment.

They change fusions, or what kernels keep of fast memory. Each gives a program of its own, with other names and another default,
for which steers are found anew. Which of them act on a chip is a property of its target.
"""

from __future__ import annotations

from collections.abc import Mapping

from stowplan.backends.xla.child import Option
from stowplan.backends.xla.steer import SCOPED_OPTION
from stowplan.hardware.targets import FlagName, XlaChip

#: A scoped limit halfway between XLA's own and one that lost little or won: it may be better than both.
BETWEEN = "scoped_between"

#: Flags whose preview shows only what they cost: a larger scoped limit leaves less memory to assign, and what kernels of larger
#: tiles save is not seen.
UNSEEN = frozenset({"scoped_double"})


def flags_of(chip: XlaChip) -> dict[str, Mapping[str, Option]]:
    """Options of each flag that is worth a try on a chip, in the order of its target."""
    scoped = (chip.scoped or 0) >> 10
    known: dict[FlagName, Mapping[str, Option]] = {
        "scoped_half": {SCOPED_OPTION: str(scoped // 2)},
        "scoped_double": {SCOPED_OPTION: str(2 * scoped)},
        "no_conv_input_fusion": {"xla_jf_conv_input_fusion": False},
        "scavenge": {"xla_tpu_scavenge_vmem_for_fusions": True},
        "bundle_aware": {"xla_tpu_use_bundle_aware_cost_model_for_fusions": True},
    }
    return {name: known[name] for name in chip.flags}


def between(chip: XlaChip, capacity: int, flag: Mapping[str, Option]) -> dict[str, Option] | None:
    """Options of the scoped limit halfway between XLA's own and a flag's; none for flags that set none, and for limits that
    leave more than half of the fast memory to the rest, of which XLA's own leaves ``capacity`` bytes."""
    if chip.scoped is None or SCOPED_OPTION not in flag:
        return None
    own, limit = chip.scoped >> 10, int(flag[SCOPED_OPTION])
    if own < limit < (capacity + chip.scoped >> 10) // 2:
        return None
    return {SCOPED_OPTION: str((own + limit) // 2)}
