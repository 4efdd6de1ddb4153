"""Models as they are shipped in public packages, read and planned."""
