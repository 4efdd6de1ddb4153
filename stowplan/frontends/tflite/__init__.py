"""Front end for TensorFlow Lite models, as TensorFlow Lite Micro runs them.

A module imports only modules that come before it in this list:

- ``flatbuffer``: reads tables and vectors of a flatbuffer
- ``result_shapes``: shapes that kernels of the runtime compute themselves
- ``model``: tensors, operators and subgraphs, live ranges, and the packing problem for the order in the file
"""
