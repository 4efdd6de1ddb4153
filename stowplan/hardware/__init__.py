"""Target descriptions, cost models, simulators and the front ends that make problems of compiled programs.

Each file knows only those before it:

- ``affine``: affine programs
- ``network``: a neural network as front ends read it
- ``program``: a compiled program as front ends read it
- ``simulator``: plays a program with a memory-mapping plan on a copy engine, with stalls
- ``targets``: target files of compiled programs, and what all target files share
- ``costs``: cost models of compiled programs
- ``inferentia``: chips with banks, such as Inferentia
- ``memories``: devices with several memories
- ``nnp_i``: chips with tiers of memory, such as NNP-I
- ``se``: arrays of tiles, such as the Streaming Engine
"""
