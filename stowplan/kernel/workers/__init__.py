"""Workers run the candidates in threads and processes; a pool starts them, sends them news, collects reports, and stops them."""
