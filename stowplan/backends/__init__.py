"""Back ends: what hands plans to compilers and runtimes, and brings back what those made of them.

Each file knows only those before it:

- ``emit``: offset tables of plans in the formats that builds take
- ``fallback``: what happens where a back end cannot do what it is asked for
- ``search``: how back ends call the search
- ``executorch``: memory plans for exported models
- ``llama``: placements of language models for llama.cpp
- ``tflm``: plans for TensorFlow Lite Micro
- ``torch``: training within a memory limit, orders for Inductor
- ``trainers``: what the callbacks for trainers share
- ``lightning``: a callback for PyTorch Lightning
- ``transformers``: a callback for Transformers
- ``xla``: plans as options of the compiler
- ``jax``: policies of ``jax.checkpoint`` for training steps
"""
