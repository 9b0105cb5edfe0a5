"""A proxy in threads of its own before a server, for tests that lose their connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.cutting_proxy import CuttingProxy


@contextmanager
def cutting(url: str) -> Iterator[CuttingProxy]:
    """Stand before the server at a URL, and leave nothing at the end."""
    proxy = CuttingProxy(url)
    try:
        yield proxy
    finally:
        proxy.stop()
