"""Back ends: each one applies plans inside a compiler or a runtime, and reports what that compiler or runtime did with them.

A file imports only files that come before it in this list:

- ``emit``: writes the offsets of a plan as a C header, as JSON or as CSV
- ``fallback``: errors and warnings for cases in which a back end keeps the framework's own plan
- ``search``: how back ends call :func:`stowplan.solve`
- ``serve``: a process that compilers in other languages call
- ``executorch``: memory plans for models that ExecuTorch exports
- ``llama``: placements of language models for llama.cpp
- ``tflm``: arena plans for TensorFlow Lite Micro
- ``torch``: training within a memory limit, and operator orders for Inductor
- ``trainers``: the base class of the callbacks for training frameworks
- ``lightning``: a callback for PyTorch Lightning
- ``transformers``: a callback for Hugging Face Transformers
- ``xla``: plans as compiler options of XLA
- ``jax``: policies of ``jax.checkpoint`` for training steps
"""
