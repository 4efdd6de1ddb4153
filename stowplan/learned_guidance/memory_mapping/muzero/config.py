"""The settings of MMap-MuZero's network and training.

There are two presets, whose values are in the file ``presets.toml`` of :mod:`stowplan.learned_guidance.training`. Their methods
are inherited from :class:`Hyperparameters`: ``TrainingConfig.cpu()`` returns the preset for one CPU core, and
``TrainingConfig.paper()`` the one with the values of table 6 of Wang et al. 2023 (appendix C). Settings that the table leaves
out are those of MuZero (Schrittwieser et al. 2020, appendices F to H) and MuZero Unplugged (Schrittwieser et al. 2021). The
sizes of the network are those of section 4.3.1 and figure 4, as far as these state them. ``docs/reference/mmap-muzero.md``
compares all settings with the paper.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from stowplan.errors import InputError, UsageError
from stowplan.learned_guidance.mcts.search import SearchConfig
from stowplan.learned_guidance.memory_mapping.game.game import Placing
from stowplan.learned_guidance.memory_mapping.observation.layout import ObservationConfig
from stowplan.learned_guidance.training.settings import Fraction, Hyperparameters, Range, Size

#: Largest number of residual blocks of the encoder, and of the dynamics.
MOST_BLOCKS = 1000


def _require(holds: bool, place: str, message: str) -> None:
    if not holds:
        raise InputError(message, place=place)


class NetworkConfig(Hyperparameters, frozen=True, kw_only=True):
    """Sizes of the network's parts. All linear layers except the last ones are followed by a layer norm and a ReLU.

    Raises
    ------
    UsageError
        If a value has a wrong type or is out of range.
    InputError
        If there are no stages or too many blocks, a stage or a width is less than 1, or a size of the observation is not a
        multiple of the patch that reads it.
    """

    observation: ObservationConfig = msgspec.field(default_factory=ObservationConfig)
    hidden: Size = 128
    """Entries of a hidden state."""

    # The encoder's parts, each of which ends in a vector of ``*_features`` entries.
    id_embedding: Size = 8
    """Entries of the embeddings of a tensor id and of an alias id."""
    buffer_features: Size = 32
    """Entries for each buffer that the observation describes: the current one, and some that are decided later."""
    map_patch: Size = 8
    """Rows and columns of the patches, without overlap, that the first layer of the memory map's ResNet reads."""
    map_stages: tuple[tuple[int, int], ...] = ((16, 1), (24, 1))
    """Stages of the ResNet as (channels, residual blocks); each except the first halves rows and columns."""
    map_bottleneck: Size = 8
    """Channels of the last stage before its cells are flattened to a vector."""
    map_features: Size = 64
    """Entries for the memory map."""
    profile_patch: Size = 16
    """Neighbouring bins of the occupancy profile that its first layer reads together. The profile divides fast memory into bins
    of equal size, and has the occupied fraction of each at the current buffer's target time."""
    profile_channels: Size = 8
    """Outputs of this layer for each patch."""
    profile_features: Size = 32
    """Entries for this profile."""
    supply_patch: Size = 4
    """Neighbouring slots of the supply profile that its first layer reads together. That profile describes the slots around the
    target time, for example the supply that is left to copies. A *slot* is a step, or a whole outermost loop."""
    supply_channels: Size = 16
    """Outputs of this layer for each patch."""
    supply_features: Size = 32
    """Entries for the supply profile."""
    summary_features: Size = 64
    """Entries for action features and global features together."""
    encoder_layers: tuple[int, ...] = (128,)
    """Widths of the MLP over all parts, without its last layer, whose width is ``hidden``."""

    # Dynamics and heads.
    dynamics_blocks: Annotated[int, Range(1, MOST_BLOCKS)] = 1
    """Residual blocks of two layers, whose inner width is ``dynamics_width``."""
    dynamics_width: Size = 160
    """Inner width of these blocks."""
    head_layers: tuple[int, ...] = (48,)
    """Widths of each head's layers, without its last."""
    value_bins: Size = 61
    """Atoms of the distribution over values; an odd number."""
    value_limit: Annotated[float, Range(1e-6)] = 8.0
    """Largest value that the bins represent, in units of the game's ``unit_ps``."""
    reward_bins: Size = 61
    """Atoms of the distribution over rewards; an odd number."""
    reward_limit: Annotated[float, Range(1e-6)] = 4.0
    """Largest reward that the bins represent, in the same units."""

    def __post_init__(self) -> None:
        super().__post_init__()
        blocks = sum(stage[1] for stage in self.map_stages)
        _require(bool(self.map_stages), "map_stages", "found none, expected at least one stage")
        for stage in self.map_stages:
            _require(min(stage) >= 1, "map_stages", f"found {stage}, expected channels and blocks of at least 1")
        # Blocks are created one by one, so that a file could demand hours of work.
        _require(blocks <= MOST_BLOCKS, "map_stages", f"found {blocks} blocks, expected at most {MOST_BLOCKS}")
        for name in ("encoder_layers", "head_layers"):
            widths = getattr(self, name)
            _require(all(width >= 1 for width in widths), name, f"found {widths}, expected widths of at least 1")
        seen = self.observation
        reach = self.map_patch << (len(self.map_stages) - 1)
        for name, patch in (
            ("map_rows", reach),
            ("map_columns", reach),
            ("profile_bins", self.profile_patch),
            ("supply_slots", self.supply_patch),
        ):
            size = getattr(seen, name)
            _require(size % patch == 0, f"observation.{name}", f"found {size}, expected a multiple of {patch}")


class TrainingConfig(Hyperparameters, frozen=True, kw_only=True):
    """Settings of training. Times are in moves, and returns in units of ``CompiledGame.unit_ps``.

    Raises
    ------
    UsageError
        If a value has a wrong type or is out of range.
    """

    network: NetworkConfig = msgspec.field(default_factory=NetworkConfig)
    search: SearchConfig = msgspec.field(default_factory=SearchConfig)
    """Settings of the search; its temperature and discount are replaced by the fields below."""

    placing: Placing = "lowest"
    """Which free offset the game gives to a new buffer."""

    # Schedule: an iteration advances all games by some moves and then trains for some steps.
    games: Annotated[int, Range(1)] = 64
    """Games played in parallel."""
    moves_per_iteration: Annotated[int, Range(1)] = 16
    """Moves of each game between two phases of training."""
    updates_per_iteration: Annotated[int, Range(0)] = 8
    """Training steps of an iteration."""
    training_steps: Annotated[int, Range(0)] = 1_000_000
    """Number of training steps after which training ends."""

    # Self-play
    discount: float = 0.9999
    """Factor by which a reward counts less for each move until it is earned; more than 0, and at most 1."""
    initial_temperature: Annotated[float, Range(0.0)] = 1.0
    """Temperature of the search at the beginning of training."""
    final_temperature: Annotated[float, Range(0.0)] = 0.2
    """Temperature of the search at the end of its decay."""
    temperature_decay_steps: Annotated[int, Range(0)] = 400_000
    """Training steps over which the temperature falls linearly."""
    restart_fraction: Fraction = 0.0
    """Part of the games that begin with a random prefix of one of the program's best games."""
    exploration_bias_fraction: Fraction = 0.0
    """Part of the games that are played with an exploration bias from beginning to end. Such a *bias* is drawn at random for a
    game, and changes the preferences of all its moves in the same way: it favours fast memory only for buffers whose benefit is
    above some threshold (``exploration.py``)."""
    warm_start_moves: Annotated[int, Range(0)] = 0
    """Moves of the warm-start episodes on all programs together. These come first and are played by random biases alone, which
    takes a few microseconds for each move and gives diverse games. With a time limit, they end after half of it."""
    local_search_moves: Annotated[int, Range(0)] = 0
    """Moves of local search (``local_search.py``) on one of the best games, in each iteration and after the warm start. The
    number of rounds is this number divided by the number of moves in a game of the program, and at least 1."""

    # Replay
    replay_size: Annotated[int, Range(1)] = 20_000
    """Largest number of the agent's own games in the replay buffer; the oldest are removed first."""
    priority_exponent: Annotated[float, Range(0.0)] = 1.0
    """Positions are drawn in proportion to |search value - n-step value| to this power; 0 draws them uniformly."""
    importance_exponent: Annotated[float, Range(0.0)] = 1.0
    """Exponent of the importance weights that correct the bias of prioritized drawing; 1 corrects it completely."""
    elite_games: Annotated[int, Range(0)] = 0
    """Number of best games of each program that stay in the replay buffer however old they are."""
    kept_fraction: Fraction = 0.0
    """Part of each batch that is drawn from demonstrations and best games, if there are any."""

    # Targets
    unroll_steps: Annotated[int, Range(0)] = 5
    """Number of moves by which the dynamics are unrolled from each position of a batch."""
    td_steps: Annotated[int | None, Range(1)] = 10
    """Number of rewards in an n-step value target, which ends in a stored value; None for all rewards to the end of the
    game."""
    full_return_fraction: Fraction = 0.0
    """Part of the positions whose value target is the full return regardless of ``td_steps``."""
    reanalyse_fraction: Fraction = 0.5
    """Part of each batch whose policy and value targets come from a new search with the target network."""
    target_network_interval: Annotated[int, Range(1)] = 100
    """Training steps between two copies of the network to the target network."""
    imitation: Annotated[float, Range(0.0)] = 0.0
    """Weight of the cross-entropy between the policy and the actions of demonstrations and best games."""

    # Optimisation
    batch_size: Annotated[int, Range(1)] = 512
    """Number of positions in a batch."""
    learning_rate: Annotated[float, Range(0.0)] = 2e-4
    weight_decay: Annotated[float, Range(0.0)] = 1e-4
    gradient_clip: Annotated[float, Range(0.0)] = 5.0
    """Norm to which the gradient is clipped."""
    # Weights of the parts of the loss.
    policy_weight: Annotated[float, Range(0.0)] = 1.0
    value_weight: Annotated[float, Range(0.0)] = 0.25
    reward_weight: Annotated[float, Range(0.0)] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.discount <= 1.0:
            raise UsageError(f"training: discount is {self.discount}, expected more than 0 and at most 1")

    def temperature(self, step: int) -> float:
        """Temperature of self-play after ``step`` training steps."""
        done = min(1.0, step / self.temperature_decay_steps) if self.temperature_decay_steps else 1.0
        return self.initial_temperature + done * (self.final_temperature - self.initial_temperature)

    def search_at(self, step: int) -> SearchConfig:
        """Settings of the search of self-play after ``step`` training steps."""
        temperature = self.temperature(step)
        # Gumbel noise of scale T samples from the improved policy to the power 1 / T.
        scale = self.search.gumbel_scale * temperature
        return self.search.changed(temperature=temperature, gumbel_scale=scale, discount=self.discount)

    def reanalyse_search(self) -> SearchConfig:
        """Settings of the search that computes new targets."""
        return self.search.changed(discount=self.discount)
