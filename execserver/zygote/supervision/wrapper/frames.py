"""Frames between an exec wrapper and the end that answers it (shell tool contract), for both ends.

A frame is the length of its text, four bytes little-endian, and the text, which is JSON.  Descriptors travel
with the first byte of the length and nowhere else.  The reader owns the descriptors that come; all of them
are close-on-exec from the start.

Nothing is believed about the peer: a frame above MAX_FRAME_BYTES, more than MAX_DESCRIPTORS descriptors and
anything that is no frame raise FrameError, and a peer that never ends its frame costs no more memory than it
fills.  The only calls are sendmsg, recvmsg and recvfrom: a sandbox refuses the others.
"""

from __future__ import annotations

import _socket
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_DESCRIPTORS = 16  # of one message, as in every implementation of this protocol
MAX_FRAME_BYTES = 8 * 1024 * 1024  # above the 6 MiB of arguments and environment that a kernel passes on
LENGTH_BYTES = 4

_CHUNK_BYTES = 64 * 1024  # of one receive: a peer gets no more memory than it fills
_NUMBER_BYTES = 4  # of a C int
# Room for one more than allowed, so that too many are seen as too many.
_RIGHTS_SPACE = _socket.CMSG_SPACE(_NUMBER_BYTES * (MAX_DESCRIPTORS + 1))
_MSG_CMSG_CLOEXEC = 0x40000000
_NOTHING_FOLLOWS = bytes(LENGTH_BYTES)  # the length of an empty frame

_CLOSED_IN_LENGTH = "socket closed while receiving frame header"
_CLOSED_IN_TEXT = "socket closed while receiving frame payload"


class FrameError(Exception):
    """The peer ended or sent what is no frame; the message says which, in the words of the contract."""


class WrapperFrameReader:
    """Receives one frame after the other from a stream socket.

    `descriptors` came with the last frame, and with the part of the next one that is here; they belong to the
    reader until `take_descriptors` or `close`.
    """

    __slots__ = ("_length", "_text", "descriptors", "limit")

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        """Refuse frames of more than `limit` bytes."""
        self.limit = limit
        self.descriptors: list[int] = []
        self._length = b""
        self._text = bytearray()

    @property
    def held_bytes(self) -> int:
        """Number of bytes held of the frame that is not complete yet."""
        return len(self._text)

    def read(self, sock: _socket.socket, flags: int = 0) -> bytes | None:
        """Receive once; return the text of a frame if that completed it, else None.

        Raises FrameError, and with MSG_DONTWAIT in `flags` BlockingIOError when nothing has come.
        """
        if len(self._length) < LENGTH_BYTES:
            self._read_length(sock, flags)
            # One receive for each call, or a second one could block: the text may not be there yet.
            if self._length != _NOTHING_FOLLOWS:
                return None
        missing = int.from_bytes(self._length, "little") - len(self._text)
        if missing:
            piece = sock.recv(min(missing, _CHUNK_BYTES), flags)
            if not piece:
                raise FrameError(_CLOSED_IN_TEXT)
            self._text += piece
            if len(piece) < missing:
                return None
        text = bytes(self._text)
        self._length = b""
        self._text = bytearray()
        return text

    def take_descriptors(self) -> list[int]:
        """Return the descriptors that came; they are the caller's now."""
        taken, self.descriptors = self.descriptors, []
        return taken

    def close(self) -> None:
        """Close the descriptors that nobody took."""
        for descriptor in self.take_descriptors():
            os.close(descriptor)

    def _read_length(self, sock: _socket.socket, flags: int) -> None:
        if self._length:
            # Descriptors behind the first byte belong to no frame.  The kernel drops them, since this call
            # has no room for any.
            piece = sock.recv(LENGTH_BYTES - len(self._length), flags)
        else:
            piece, descriptors = receive_rights(sock, LENGTH_BYTES, flags)
            self.descriptors += descriptors
            # Kept until `close` even if there are too many, so that they are closed.
            if len(self.descriptors) > MAX_DESCRIPTORS:
                raise FrameError(f"too many fds: {len(self.descriptors)}")
        if not piece:
            raise FrameError(_CLOSED_IN_LENGTH)
        self._length += piece
        length = int.from_bytes(self._length, "little")
        if len(self._length) == LENGTH_BYTES and length > self.limit:
            raise FrameError(f"frame of {length} bytes is above the limit of {self.limit}")


def receive_rights(sock: _socket.socket, length: int, flags: int = 0) -> tuple[bytes, list[int]]:
    """Receive at most `length` bytes; return them with the descriptors that came along, the caller's now.

    If there are more than MAX_DESCRIPTORS, more than that are returned.  Those for which this process had no
    free number are missing.
    """
    data, ancillary, _, _ = sock.recvmsg(length, _RIGHTS_SPACE, flags | _MSG_CMSG_CLOEXEC)
    descriptors = []
    for level, kind, content in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            # The kernel may cut the last number off when the room is used up.
            whole = len(content) // _NUMBER_BYTES * _NUMBER_BYTES
            descriptors += [
                int.from_bytes(content[at : at + _NUMBER_BYTES], sys.byteorder, signed=True)
                for at in range(0, whole, _NUMBER_BYTES)
            ]
    return data, descriptors


def send_rights(
    sock: _socket.socket, data: bytes | memoryview, descriptors: Iterable[int], flags: int = 0
) -> int:
    """Send bytes with descriptors, which stay the caller's; return how many bytes were taken."""
    packed = b"".join(number.to_bytes(_NUMBER_BYTES, sys.byteorder) for number in descriptors)
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)] if packed else []
    return sock.sendmsg([data], rights, flags | _socket.MSG_NOSIGNAL)


def send_frame(sock: _socket.socket, text: bytes, descriptors: Sequence[int] = (), flags: int = 0) -> None:
    """Send a frame whole, with descriptors that stay the caller's.

    Raises FrameError for what no frame can hold, and OSError when the peer is gone; with MSG_DONTWAIT in
    `flags` BlockingIOError when it leaves no room, and part of the frame may be sent then.
    """
    if len(descriptors) > MAX_DESCRIPTORS:
        raise FrameError(f"too many fds: {len(descriptors)}")
    if len(text) > MAX_FRAME_BYTES:
        raise FrameError(f"frame of {len(text)} bytes is above the limit of {MAX_FRAME_BYTES}")
    # The first send takes at least one byte, and with it the descriptors.
    view = memoryview(len(text).to_bytes(LENGTH_BYTES, "little") + text)
    view = view[send_rights(sock, view, descriptors, flags) :]
    while view:
        view = view[send_rights(sock, view, (), flags) :]
