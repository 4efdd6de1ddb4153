"""What trained policies are worth, measured against exact optima over a suite of problems (``docs/guide/validate.md``)."""
