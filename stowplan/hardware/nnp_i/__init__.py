"""Intel NNP-I, a chip for inference with three tiers of memory: costs, its native compiler's mapper, and a simulated chip.

The setting of Khadka et al., "Optimizing Memory Placement using Evolutionary Graph Reinforcement Learning", ICLR 2021. The
tiers and speeds are data (``nnp-i.toml``), so that other chips of this shape are a file each.
"""
