"""The sessions of a server: who has them, which stay longer, and how they pass to another program."""
