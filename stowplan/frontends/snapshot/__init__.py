"""Memory snapshots of PyTorch as packing problems.

``plain_pickle``: pickles that hold plain data; ``trace``: what the allocator did; ``replay``: what it had reserved, and where
things stood; ``findings``: what a plan says of it; ``format``: the input format.
"""
