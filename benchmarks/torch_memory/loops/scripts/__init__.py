"""Training loops, one in each file: ``loop`` is given a Run of :mod:`benchmarks.torch_memory.loops.run`."""
