"""The page about a validation of policies."""
