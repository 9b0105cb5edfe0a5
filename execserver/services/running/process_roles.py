"""What stands around a process, as it sees that: who follows it, what belongs to it, what words it uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from execserver.services.clients.attachment import Attachment

if TYPE_CHECKING:
    from execserver.handover.carrier import Outgoing
    from execserver.handover.records import PackedNetwork


class Follower(Protocol):
    """Another session that follows a process."""

    @property
    def attachment(self) -> Attachment:
        """The session that follows."""

    def lose(self) -> None:
        """Note that the process is forgotten."""

    def tell_writer(self) -> None:
        """Tell the client whether its session writes now."""


class Closing(Protocol):
    """What belongs to a process and is closed with it."""

    def close(self) -> None:
        """Let go of everything.  Never blocks."""

    def pack(self, out: Outgoing) -> PackedNetwork | None:
        """Return what another server makes it of; None once it is closed."""


class Templates(Protocol):
    """The JSON texts of the notifications of one process; an empty text is not sent."""

    def output(self, stream: str, seq: int, data: bytes) -> tuple[bytes, ...]:
        """Return the notification of one output chunk, in parts."""

    def exited(
        self,
        seq: int,
        exit_code: int,
        sandbox_denied: bool = False,
        sandbox_refusal: str = "",
        end: bytes = b"",
    ) -> bytes:
        """Return the notification of the exit."""

    def closed(self, seq: int) -> bytes:
        """Return the notification that the process is closed."""

    def pack(self) -> tuple[str, dict[str, int] | None]:
        """Return which templates these are, and what is left of each stream where that is limited."""
