"""What MMap-MuZero sees of a state (Wang et al. 2023, section 4.3.1): buffers, memory map, profiles, actions, globals.

``observation_layout.py`` says what stands where, ``observation_view.py`` computes once for each game what no move changes, and
``observation_kernel.py`` encodes a state.
"""

from __future__ import annotations

from stowplan.learned_guidance.memory_mapping.game.kernel import CompiledGame, CompiledState
from stowplan.learned_guidance.memory_mapping.game.kernel.layout import LEGAL
from stowplan.learned_guidance.memory_mapping.observation.config import ObservationConfig
from stowplan.learned_guidance.memory_mapping.observation.kernel import encode
from stowplan.learned_guidance.memory_mapping.observation.layout import Observations, empty_observations
from stowplan.learned_guidance.memory_mapping.observation.view import view_of
from stowplan.models.hint import Hint

__all__ = ["Observations", "Observer", "empty_observations"]


class Observer:
    """Observations of the states of one game. Not to be shared between threads.

    Parameters
    ----------
    hint
        Of the game's problem, whose values are shown beside each buffer; its numbers must fit
        (:func:`stowplan.models.hint.check`). None where nothing is known.
    """

    def __init__(self, game: CompiledGame, config: ObservationConfig, hint: Hint | None = None):
        self.game = game
        self.config = config
        self._view = view_of(game, config, hint)

    @property
    def scales(self) -> tuple[float, float]:
        """Mean benefit of a move (ps), and benefit per byte and step: what rewards are compared with."""
        return self._view.mean_benefit, self._view.density

    def observe(self, state: CompiledState, out: Observations, row: int) -> None:
        """Fill one row of ``out``, which is for this config (:func:`empty_observations`).

        Raises
        ------
        ValueError
            If the game is over, so that there is nothing to decide.
        IndexError
            If there is no such row.
        """
        if not state.data[LEGAL]:
            raise ValueError("the game is over: there is nothing to observe")
        if not 0 <= row < len(out.globals):
            raise IndexError(f"row {row} of {len(out.globals)}")
        encode(self.game.tables, state.data, self._view, out, row)
