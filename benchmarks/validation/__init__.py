"""The shipped policies against exact optima, and their rewards beside a compiler's cycles."""
