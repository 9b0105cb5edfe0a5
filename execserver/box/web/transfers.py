"""Downloads and uploads of any size, in pieces: nothing is held but one block.

An upload goes to a file beside its target, which takes the target's place at the end, with the permissions of
what was there.  One that is cut leaves nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from execserver.box.web.answers import download, plain
from execserver.box.web.failing import EXISTS, NOT_FOUND, UNSUPPORTED, WRONG, CallFailed, of_client
from execserver.box.web.files import target_of
from execserver.box.web.gate import Refused
from execserver.box.web.listener import Arrived, body_of, linger
from execserver.box.web.paths import beside, uri_of
from execserver.client.errors import ExecServerError
from execserver.client.operations.content import BLOCK_BYTES

if TYPE_CHECKING:
    from execserver.box.web.boxes import Boxes
    from execserver.box.web.link import Link
    from execserver.client.client import ExecServerClient
    from execserver.client.files import RemoteFile
    from execserver.protocol.paths import PathUri

_STATUS: Final = {WRONG: 400, NOT_FOUND: 404, EXISTS: 412, UNSUPPORTED: 502}


def transfer(boxes: Boxes, arrived: Arrived) -> None:
    """Answer a request for a file.  Raises Refused, OSError."""
    query = arrived.asked.query
    try:
        link = boxes.link(query.get("box", ""))
        path = uri_of(query.get("path", ""))
        with link.using():
            pass  # connected, in the time that a call has
        if arrived.request.method == "PUT":
            _upload(link, path, arrived)
        else:
            _download(link, path, query["path"], arrived)
    except CallFailed as failed:
        raise Refused(_STATUS.get(failed.code, 502), str(failed)) from None


def _download(link: Link, path: PathUri, name: str, arrived: Arrived) -> None:
    with link.using() as client:
        file = client.open_file(path)
    try:
        block = _block(file, 0)
        arrived.sock.sendall(download(name))
        offset = 0
        while block:
            arrived.sock.sendall(b"%x\r\n%b\r\n" % (len(block), block))
            offset += len(block)
            block = _block(file, offset)
        arrived.sock.sendall(b"0\r\n\r\n")
    finally:
        _close(file)


def _block(file: RemoteFile, offset: int) -> bytes:
    """Return a block.  An error in the middle of a download cuts it, which a browser notices."""
    try:
        return file.read_block(offset)
    except ExecServerError as error:
        if offset:
            raise ConnectionError(str(error)) from None
        raise of_client(error) from None


def _close(file: RemoteFile) -> None:
    try:
        file.close()
    except ExecServerError:
        pass  # it ends with the connection


def _upload(link: Link, path: PathUri, arrived: Arrived) -> None:
    lengths = arrived.request.values("content-length")
    if not lengths:
        raise Refused(411, "an upload says its length")
    is_new_only = arrived.request.values("if-none-match") == ["*"]
    with link.using() as client:
        if not client.extensions.fs_change:
            raise CallFailed("this server takes no uploads", UNSUPPORTED, "use a newer execserver there")
        target = target_of(client, path)
        mode = _mode_there(client, target)
        if mode is not None and is_new_only:
            raise CallFailed("there is such a file already", EXISTS)
        part = beside(target, b".upload-%s.part" % os.urandom(8).hex().encode())
        file = client.open_file(part, "replace")
    if arrived.request.has_token("expect", "100-continue"):
        arrived.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    placed = False
    try:
        _fill(file, arrived, int(lengths[0]))
        with link.using() as client:
            if mode is not None:
                client.files.chmod(part, mode)
            client.files.rename(part, target, replace=not is_new_only)
        placed = True
    finally:
        _close(file)
        if not placed:
            _remove(client, part)
    arrived.sock.sendall(plain(201 if mode is None else 204))
    linger(arrived.sock)


def _fill(file: RemoteFile, arrived: Arrived, length: int) -> None:
    read = body_of(arrived, length)
    offset, ended = 0, False
    while not ended:
        block = bytearray()
        while len(block) < BLOCK_BYTES and (data := read(BLOCK_BYTES - len(block))):
            block += data
        ended = len(block) < BLOCK_BYTES
        if block:
            try:
                file.write_block(offset, bytes(block))
            except ExecServerError as error:
                raise of_client(error) from None
            offset += len(block)
    file.close()


def _mode_there(client: ExecServerClient, path: PathUri) -> int | None:
    """Return the permissions of the file that is there, None without one.  Raises CallFailed for a folder."""
    try:
        return client.files.stat(path).mode
    except ExecServerError as error:
        failed = of_client(error)
        if failed.code == NOT_FOUND:
            return None
        raise failed from None


def _remove(client: ExecServerClient, path: PathUri) -> None:
    try:
        client.remove(path, recursive=False)
    except ExecServerError:
        pass  # the connection is lost, and the part stays
