"""What keeps a relay from serving."""

from __future__ import annotations


class CannotServe(Exception):
    """Something the user has to correct; the text says what, and names the file."""


class EngineSilent(CannotServe):
    """The shared engine did not answer in time: nothing is known, so nothing may be refused for good."""
