"""One small function per method of the contract, bound to the method table."""

from __future__ import annotations


def load_handlers() -> None:
    """Import every handler and check that the method table and the handlers match."""
    from execserver.handlers import environment, filesystem, http, legacy, process, registry, session  # noqa: F401

    registry.check_complete()
