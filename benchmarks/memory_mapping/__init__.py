"""Memory mapping: modules of the corpus, the parts of its exact models, its search."""
