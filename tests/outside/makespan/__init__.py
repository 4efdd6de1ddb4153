"""A package of its own that adds a kind to stowplan: jobs on machines that are alike, the last done as soon as can be."""
