"""Records and descriptors over the SOCK_SEQPACKET pair between server and zygote.

A record above DATAGRAM_BYTES travels in a memfd, which is the last descriptor of its message.  Received
descriptors are close-on-exec from the start, so no child of another request inherits them.
"""

from __future__ import annotations

import _socket
import os
import struct

from execserver.sandbox.kernel import limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

DATAGRAM_BYTES = 64 * 1024  # well below the kernel's default socket buffer, which bounds one datagram
MAX_RECORD_BYTES = 1 << 30
MAX_DESCRIPTORS = 8  # a spawn needs three, a large one four
_MSG_CMSG_CLOEXEC = 0x40000000
_LARGE = struct.Struct("<B7xQQ")  # marker, request id, length of the record in the memfd
_LARGE_MARKER = 0xFF  # no record kind has this number
_REQUEST_ID = struct.Struct("<8xQ")  # where every record has its id


class RecordLost(Exception):
    """A large record arrived without its memfd: this process has no free descriptor left."""

    def __init__(self, request_id: int) -> None:
        super().__init__(f"record of request {request_id} lost: no free descriptor")
        self.request_id = request_id


def send_record(sock: _socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send one record with the descriptors, which the caller keeps and closes.

    If a non-blocking socket is full, BlockingIOError is raised and nothing was sent; if the peer is gone,
    another OSError.
    """
    if len(data) <= DATAGRAM_BYTES:
        _send(sock, data, descriptors)
        return
    memfd = os.memfd_create("record", os.MFD_CLOEXEC)
    try:
        _write_all(memfd, data)
        (request_id,) = _REQUEST_ID.unpack_from(data)
        _send(sock, _LARGE.pack(_LARGE_MARKER, request_id, len(data)), [*descriptors, memfd])
    finally:
        os.close(memfd)


def receive_record(sock: _socket.socket) -> tuple[bytes, list[int]] | None:
    """Return the next record and its descriptors, owned by the caller; None at end of file.

    A non-blocking socket with nothing to read raises BlockingIOError.  Descriptors that found no free number
    are missing from the list.
    """
    try:
        return receive_bounded(sock, MAX_RECORD_BYTES)
    except ConnectionResetError:
        # The peer has ended, with something of ours unread.  The kernel says so once, and first, but what the
        # peer had sent before, as the exit of a child, still comes.
        return receive_bounded(sock, MAX_RECORD_BYTES)


def receive_bounded(sock: _socket.socket, max_bytes: int) -> tuple[bytes, list[int]] | None:
    """Receive as `receive_record` does.

    Raises ConnectionResetError when the peer ended and left something of ours unread, RecordLost for a record
    above `max_bytes`, whose descriptors are closed.
    """
    space = _socket.CMSG_SPACE(4 * MAX_DESCRIPTORS)
    data, ancillary, _, _ = sock.recvmsg(DATAGRAM_BYTES, space, _MSG_CMSG_CLOEXEC)
    descriptors: list[int] = []
    for level, kind, content in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            descriptors += struct.unpack(f"{len(content) // 4}i", content[: len(content) // 4 * 4])
    if not data:
        return None
    if data[0] != _LARGE_MARKER:
        return data, descriptors
    return _read_large(data, descriptors, max_bytes), descriptors


def _send(sock: _socket.socket, data: bytes, descriptors: Sequence[int]) -> None:
    packed = struct.pack(f"{len(descriptors)}i", *descriptors)
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)] if descriptors else []
    # A file worker's filter refuses `send`, which is `sendto` to the kernel.
    limits.send(sock, data, rights)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _read_large(datagram: bytes, descriptors: list[int], max_bytes: int) -> bytes:
    """Take the memfd off the list and return the record it holds.

    Raises RecordLost if it is not there, not as long as announced or above `max_bytes`; then all are closed.
    """
    _, request_id, length = _LARGE.unpack(datagram)
    memfd = descriptors.pop() if descriptors else -1
    try:
        data = os.pread(memfd, length, 0) if memfd >= 0 and length <= max_bytes else b""
    except OSError:
        data = b""  # the memfd was lost, so the last one on the list is another descriptor
    finally:
        if memfd >= 0:
            os.close(memfd)
    if len(data) != length:
        for descriptor in descriptors:
            os.close(descriptor)
        raise RecordLost(request_id)
    return data
