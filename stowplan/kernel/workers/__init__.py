"""Workers run candidates in threads and processes; a pool starts them, sends them updates and collects their reports."""
