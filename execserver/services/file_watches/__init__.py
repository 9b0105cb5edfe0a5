"""Watched folders of sessions: the kernel's events as batches of changes that a client can follow."""
