"""The rules at work for greenlets: one session, its connection, and what goes out on it."""
