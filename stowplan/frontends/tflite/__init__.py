"""TensorFlow Lite models: the tables of their flatbuffers, and what TensorFlow Lite Micro makes of them.

Each file knows only those before it:

- ``flatbuffer``: tables and vectors of a flatbuffer
- ``result_shapes``: shapes that kernels of the runtime work out themselves
- ``model``: tensors, operators and subgraphs, when they live, and the packing problem of the order in the file
"""
