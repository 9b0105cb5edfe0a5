"""Who is at the other end of a rendezvous WebSocket."""

from __future__ import annotations

from typing import NamedTuple


class Identity(NamedTuple):
    """Whose credential the URL of a WebSocket holds."""

    is_executor: bool
    environment_id: str
    registration_id: str
    fingerprint: bytes  # of the executor's or the harness's key
    token_id: str

    @property
    def role(self) -> str:
        """`executor` or `harness`."""
        return "executor" if self.is_executor else "harness"
