"""Intel NNP-I, a chip for inference with three tiers of memory: its costs, a model of its compiler, and a simulated chip.

The setting is that of Khadka et al., "Optimizing Memory Placement using Evolutionary Graph Reinforcement Learning", ICLR 2021.
A *memory map* assigns a tier to the weights and to the output of every layer of a network. To *rectify* a memory map that
exceeds the capacity of a tier means to change it by simple rules to one that can be executed. Tiers and speeds are read from
``nnp-i.toml``, so that other chips with tiers of memory only need another file.

Each module imports only modules that are listed before it:

- ``compiled``: latencies and rectification of many memory maps at once, compiled with numba
- ``target``: descriptions of chips with tiers of memory
- ``problem``: the tier-placement problem of a network on a target, and latencies of memory maps
- ``compiler``: simple rules that create memory maps and rectify proposed ones, in the manner of a native compiler
- ``chip``: the simulated chip that learned policies are trained with
"""
