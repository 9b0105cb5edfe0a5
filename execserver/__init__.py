"""Run commands and edit files on this machine for a Codex harness, another program or a person."""

from __future__ import annotations

__version__ = "0.1.0"
