"""Data-movement elimination: copies whose readers can read what they copied from (section 2.1 of the paper)."""
