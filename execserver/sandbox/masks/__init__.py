"""Mask targets on the host: made, shared by their owners, and removed when the last of these has ended."""
