"""The transports of messages, and the loop that serves one connection."""
