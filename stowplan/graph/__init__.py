"""Graphs of operators and tensors. Readers make one from a model file, and problems of several kinds are made from it.

Each module imports only modules that are listed before it:

- ``rules``: the rules of a valid graph of tensors and operators, and properties derived from it
- ``graph``: the graph that readers make
- ``spec``: further promises of readers about their graphs, as a check that tests run on every file that they read
"""
