"""Registers the package's Gymnasium environments; importing this module is enough.

Without an import of one's own, put the module before the name, as Gymnasium allows since 1.0, where it gave up loading the
environments of installed packages by itself::

    gymnasium.make("stowplan.learned_guidance.environments:stowplan/MMapGame-v0")
"""

from __future__ import annotations

import gymnasium

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
