"""Puts another program, or a newer file of the same, in the place of a running server."""
