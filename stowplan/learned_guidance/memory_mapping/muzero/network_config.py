"""Sizes of MMap-MuZero's network (Wang et al. 2023, section 4.3.1 and figure 4).

The paper gives the parts and a few sizes; ``docs/reference/mmap-muzero.md`` says which are its own and which were chosen here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stowplan.learned_guidance.memory_mapping.observation.config import ObservationConfig, require, require_positive

#: Residual blocks of the encoder, and of the dynamics, at most.
MOST_BLOCKS = 1000


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Sizes of the network's parts; all linear layers but the last ones are followed by a layer norm and a ReLU."""

    observation: ObservationConfig = field(default_factory=ObservationConfig)
    hidden: int = 128
    """Entries of a hidden state."""

    # The encoder's parts, each ending in a vector of ``*_features``.
    id_embedding: int = 8
    """Entries of the embeddings of a tensor id and of an alias id."""
    buffer_features: int = 32
    """For each of the buffers described."""
    map_patch: int = 8
    """The memory map's first layer reads patches of so many rows and columns, side by side."""
    map_stages: tuple[tuple[int, int], ...] = ((16, 1), (24, 1))
    """Stages of the ResNet as (channels, residual blocks); each but the first halves rows and columns."""
    map_bottleneck: int = 8
    """Channels left when the last stage's cells are laid out as one vector."""
    map_features: int = 64
    profile_patch: int = 16
    profile_channels: int = 8
    profile_features: int = 32
    supply_patch: int = 4
    supply_channels: int = 16
    supply_features: int = 32
    summary_features: int = 64
    """Action features and global features together."""
    encoder_layers: tuple[int, ...] = (128,)
    """Widths of the MLP over all parts, before its last layer, which has ``hidden``."""

    # Dynamics and heads.
    dynamics_blocks: int = 1
    """Residual blocks of two layers, ``dynamics_width`` wide inside."""
    dynamics_width: int = 160
    head_layers: tuple[int, ...] = (48,)
    """Widths of each head's layers before its last."""
    value_bins: int = 61
    value_limit: float = 8.0
    """In units of the game's ``unit_ps``."""
    reward_bins: int = 61
    reward_limit: float = 4.0

    def __post_init__(self) -> None:
        require_positive(self)
        require(bool(self.map_stages), "map_stages", "found none, expected at least one stage")
        for name in ("encoder_layers", "head_layers"):
            widths = getattr(self, name)
            require(all(width >= 1 for width in widths), name, f"found {widths}, expected widths of at least 1")
        for stage in self.map_stages:
            require(min(stage) >= 1, "map_stages", f"found {stage}, expected channels and blocks of at least 1")
        # Blocks are made one by one, so that a file could ask for hours of them.
        in_map = sum(stage[1] for stage in self.map_stages)
        for name, blocks in (("map_stages", in_map), ("dynamics_blocks", self.dynamics_blocks)):
            require(blocks <= MOST_BLOCKS, name, f"found {blocks} blocks, expected at most {MOST_BLOCKS}")
        seen = self.observation
        reach = self.map_patch << (len(self.map_stages) - 1)
        for name, size, patch in (
            ("map_rows", seen.map_rows, reach),
            ("map_columns", seen.map_columns, reach),
            ("profile_bins", seen.profile_bins, self.profile_patch),
            ("supply_slots", seen.supply_slots, self.supply_patch),
        ):
            require(size % patch == 0, f"observation.{name}", f"found {size}, expected a multiple of {patch}")

    @classmethod
    def cpu(cls) -> NetworkConfig:
        """About a quarter of a million parameters; searched and trained on one core."""
        return cls()

    @classmethod
    def paper(cls) -> NetworkConfig:
        """Of the size that the paper's inputs ask for; for an accelerator."""
        return cls(
            observation=ObservationConfig.paper(),
            hidden=512,
            id_embedding=32,
            buffer_features=128,
            map_patch=2,
            map_stages=((32, 2), (64, 2), (128, 2), (128, 2)),
            map_bottleneck=32,
            map_features=256,
            profile_patch=64,
            profile_channels=16,
            profile_features=256,
            supply_patch=4,
            supply_channels=32,
            supply_features=128,
            summary_features=128,
            encoder_layers=(1024,),
            dynamics_blocks=4,
            dynamics_width=512,
            head_layers=(256, 256),
            value_bins=301,
            reward_bins=301,
        )
