"""Graphs of operators and tensors, which all readers make and from which all problems with graphs are made.

Each file knows only those before it:

- ``rules``: the rules of a valid graph of tensors and operators, and properties derived from it
- ``graph``: the graph that readers make
- ``spec``: further promises of readers, as a check that tests run on every file
"""
