"""What keeps a relay from serving."""

from __future__ import annotations


class CannotServe(Exception):
    """Something the user has to correct; the text says what, and names the file."""
