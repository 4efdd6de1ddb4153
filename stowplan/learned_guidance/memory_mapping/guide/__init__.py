"""A learned guide for memory mapping: it predicts a hint for every access of a program, without solving a relaxation.

An *access* is all uses of one tensor by one step. It is *fast* if fast memory serves it. The *gap* after an access is the time
up to the next access of the tensor; the tensor is *kept* if it stays in fast memory over the gap. A gap is *dead* if there is
no next access, or if that overwrites the tensor. It is *glued* if no residency may begin or end in it, so that both of its
accesses are fast or both are slow. An array with the shape ``[A]`` has an entry for each access, and one with the shape ``[T]``
an entry for each step.

Each file imports only files above it in this list:

- ``program``: a memory-mapping problem as flat arrays of accesses
- ``features``: the features of each access
- ``guide``: the network and its hints
"""
