"""Descriptions of machines and programs, cost models and simulators; they turn a program and a target into a problem.

A *target* is the description of a machine: its memories, processing elements and speeds. Each module imports only modules that
are listed before it:

- ``affine``: affine programs
- ``network``: a neural network, as front ends return it
- ``program``: a compiled program, as front ends return it
- ``simulator``: computes when each step and copy of a memory-mapping plan runs, and how long steps wait for copies
- ``targets``: target files of compiled programs, and the reader of all target files
- ``costs``: cost models of compiled programs
- ``inferentia``: chips with banks of on-chip memory, such as Inferentia
- ``memories``: devices with several memories
- ``nnp_i``: chips with tiers of memory, such as NNP-I
- ``se``: arrays of tiles, such as the Streaming Engine
"""
