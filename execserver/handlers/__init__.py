"""One small function for each method of the contract, bound to the method table."""

from __future__ import annotations


def load_handlers() -> None:
    """Import every handler and check that the method table and the handlers match."""
    from importlib import import_module

    from execserver.handlers.registry import check_complete

    for name in (
        "session",
        "process",
        "process_start",
        "watching",
        "ports",
        "filesystem",
        "changes",
        "trees",
        "batches",
        "file_watches",
        "http",
        "environment",
        "discovery",
        "legacy",
        "audit",
    ):
        import_module(f"{__name__}.{name}")
    check_complete()
