"""Interception by a patched shell: the socket of its exec wrappers."""
