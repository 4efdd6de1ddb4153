"""stowplan: verified, provably good memory plans for compiled machine-learning programs."""

__version__ = "0.1.0"
