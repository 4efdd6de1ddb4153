"""Intel NNP-I, a chip for inference with three tiers of memory: costs, its native compiler's mapper, and a simulated chip.

The setting of Khadka et al., "Optimizing Memory Placement using Evolutionary Graph Reinforcement Learning", ICLR 2021. The
tiers and speeds are data (``nnp-i.toml``), so that other chips of this shape are a file each.

Each file knows only those before it:

- ``compiled``: latencies of many maps at once, compiled
- ``target``: what a chip with tiers of memory is
- ``problem``: a network on a target as a problem of tier placement
- ``compiler``: a mapper in the manner of a native compiler
- ``chip``: the chip as policies meet it
"""
