"""What keeps a relay from serving."""

from __future__ import annotations


class CannotServe(Exception):
    """Something a person has to put right; the text says what, and names the file."""
