"""One run of candidates, side by side: what is known of it, its workers, and when it stops."""
