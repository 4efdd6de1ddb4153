"""Workers run the candidates in threads and processes; a pool starts them, sends them news and collects what they report."""
