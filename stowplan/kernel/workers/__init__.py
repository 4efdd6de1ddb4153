"""Workers: candidates in threads and processes, when they start, what they are told and what they report."""
