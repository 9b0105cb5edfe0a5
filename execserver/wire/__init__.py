"""Bytes to messages and back, for each carrier.  No I/O."""
