"""llama.cpp: bytes and speeds of placements, by the runtime itself where it is built.

- ``gguf_files``: writes GGUF files with true headers and no data
- ``architectures``: the tensors and keys of each architecture, as llama.cpp loads them
"""
