"""Bytes to messages and back, for each transport.  No I/O."""
