"""A folder as .tar.gz that depends on its contents only, and the one file made of it."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

TRAILER_BYTES = 128  # the launcher reads as many from the end of its file
HASH_DIGITS = 32
DIGEST_BYTES = 32  # of BLAKE2b, for each file
_LEVEL, _MEMORY = 7, 9  # level 9 takes three times as long and saves half a percent
_GZIP_HEAD = (
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff"  # deflate, no time, best compression, no system named
)


class Payload(NamedTuple):
    """A compressed tree, the name it is unpacked under, and what an unpacked one is compared with.

    The first `part` bytes of the data are an archive of their own: what a file helper needs of the tree.
    """

    data: bytes
    hash: str
    manifest: bytes = b""
    part: int = 0


def pack(tree: Path, first: Sequence[Path] = ()) -> Payload:
    """Return the tree as the launcher unpacks it; `first` are the files and folders of the part."""
    rest = sorted(set(tree.rglob("*")) - set(first))
    # Without an end of its own, the part and the rest are one archive for `tar`.
    part = compress(_tar(tree, first, is_last=False)) if first else b""
    data = part + compress(_tar(tree, rest))
    return Payload(data, hashlib.sha256(data).hexdigest()[:HASH_DIGITS], _manifest(tree), len(part))


def compress(data: bytes) -> bytes:
    """Return data in gzip's format."""
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, _MEMORY)
    tail = zlib.crc32(data).to_bytes(4, "little") + (len(data) & 0xFFFF_FFFF).to_bytes(4, "little")
    return _GZIP_HEAD + deflate.compress(data) + deflate.flush() + tail


def trailer(start: int, payload: Payload) -> bytes:
    """Return the last bytes of the one file: where the payload begins, its size, its hash, and its parts."""
    text = (
        f"execserver tree {start} {len(payload.data)} {payload.hash} {len(payload.manifest)} {payload.part}\n"
    )
    return text.encode().ljust(TRAILER_BYTES, b"\0")


def _manifest(tree: Path) -> bytes:
    """Return a line for each folder and file of a tree, as launcher/prove.h says.

    A symlink has no line: a tree with one cannot be proven, and ours has none.
    """
    lines = []
    for path in sorted(tree.rglob("*")):
        name = path.relative_to(tree)
        if path.is_symlink():
            continue
        if path.is_dir():
            lines.append(f"d {name}\n")
        else:
            data = path.read_bytes()
            digest = hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()
            lines.append(f"f {len(data)} {digest} {name}\n")
    return "".join(lines).encode()


def _tar(tree: Path, paths: Sequence[Path], *, is_last: bool = True) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in paths:
            member = tarfile.TarInfo(str(path.relative_to(tree)))
            if path.is_symlink():
                member.type, member.linkname = tarfile.SYMTYPE, str(path.readlink())
                archive.addfile(member)
            elif path.is_dir():
                member.type, member.mode = tarfile.DIRTYPE, 0o700
                archive.addfile(member)
            else:
                member.size, member.mode = path.stat().st_size, path.stat().st_mode & 0o777
                archive.addfile(member, io.BytesIO(path.read_bytes()))
        size = archive.offset  # behind it come the blocks that end an archive
    return made.getvalue() if is_last else made.getvalue()[:size]
