"""The page and the picture about a tuning of XLA: both layouts side by side, and what gained."""
