"""Training steps of jax within limits of HBM, beside the policies that jax has."""
