"""Graphs of operators and tensors, which all readers make and from which all problems with graphs are made.

Each file knows only those before it:

- ``rules``: when tensors and operators are a graph, and what follows from them
- ``graph``: the graph that readers make
- ``spec``: what readers promise beside the rules, as a check that tests run on every file
"""
