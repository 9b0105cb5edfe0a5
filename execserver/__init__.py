"""A server that lets a Codex harness, another program or a person run commands and edit files on this machine."""

from __future__ import annotations

__version__ = "0.1.0"
