"""The launcher's own gzip, deflate and tar, against the standard library's, and with damaged data.

Compiled with the sanitizers of the compiler, so that a read or write out of bounds ends the program.
"""

from __future__ import annotations

import io
import random
import shutil
import subprocess
import tarfile
import zlib
from pathlib import Path

import pytest

from tests.support.source import ROOT

DAMAGED = b"the file is damaged or incomplete, copy it again\n"
SANITIZERS = "-fsanitize=address,undefined"
HARNESS = """
#include "unpack.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    FILE *file = fopen(argv[1], "rb");
    unsigned char *data = malloc(1 << 22);
    size_t size = fread(data, 1, 1 << 22, file);
    /* Exactly as large as what it holds, so that the sanitizer sees every byte too many. */
    data = realloc(data, size ? size : 1);
    const char *wrong = unpack(data, size, open(argv[2], O_RDONLY | O_DIRECTORY));
    if (wrong) puts(wrong);
    free(data);
    fclose(file);
    return argc == 3 && !wrong ? 0 : 1;
}
"""


@pytest.fixture(scope="module")
def unpacker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that unpacks its first argument into its second."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler on this machine")
    folder = tmp_path_factory.mktemp("unpacker")
    (folder / "harness.c").write_text(HARNESS)
    sources = [str(folder / "harness.c"), str(ROOT / "launcher" / "unpack.c")]
    command = [compiler, "-g", "-O1", f"-I{ROOT / 'launcher'}", "-o", str(folder / "unpacker"), *sources]
    done = subprocess.run([*command, SANITIZERS], capture_output=True, text=True, check=False)
    if done.returncode:  # a compiler without its sanitizers tests the results at least
        subprocess.run(command, check=True)
    return folder / "unpacker"


def contents() -> dict[str, bytes]:
    """Return files of all kinds: empty, of a whole block, repetitive near and far, not compressible."""
    chance = random.Random(1)
    noise = chance.randbytes(70_000)
    return {
        "empty": b"",
        "folder/block": b"x" * 512,
        "folder/one-more": b"y" * 513,
        "text": b"".join(b"line %d of some text\n" % (number % 97) for number in range(9000)),
        "noise": noise,
        "far": noise[:33_000] + noise[:33_000],
        "a-long-name-" + "n" * 80 + "/" + "m" * 90: b"long",
    }


def tar(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        folders = dict.fromkeys(str(parent) for name in files for parent in Path(name).parents if parent.name)
        for folder in folders:
            member = tarfile.TarInfo(folder)
            member.type, member.mode = tarfile.DIRTYPE, 0o700
            archive.addfile(member)
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o640
            archive.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "text"
        archive.addfile(link)
    return made.getvalue()


def gzip(data: bytes, level: int = 9, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> bytes:
    deflate = zlib.compressobj(level, zlib.DEFLATED, 16 + zlib.MAX_WBITS, 8, strategy)
    return deflate.compress(data) + deflate.flush()


def unpack(unpacker: Path, data: bytes, folder: Path) -> subprocess.CompletedProcess[bytes]:
    packed = folder / "packed"
    packed.write_bytes(data)
    target = folder / "target"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    command = [unpacker, packed, target]
    # The launcher sets a mask of its own before it unpacks.
    return subprocess.run(command, capture_output=True, timeout=20, check=False, umask=0o022)


@pytest.mark.parametrize(
    ("level", "strategy"),
    [
        (0, zlib.Z_DEFAULT_STRATEGY),
        (1, zlib.Z_DEFAULT_STRATEGY),
        (9, zlib.Z_DEFAULT_STRATEGY),
        (9, zlib.Z_FIXED),
        (9, zlib.Z_HUFFMAN_ONLY),
        (9, zlib.Z_RLE),
    ],
)
def test_what_was_packed_comes_out(level: int, strategy: int, unpacker: Path, tmp_path: Path) -> None:
    files = contents()
    done = unpack(unpacker, gzip(tar(files), level, strategy), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    target = tmp_path / "target"
    found = {str(path.relative_to(target)): path for path in target.rglob("*") if path.is_file()}
    assert found.pop("link").readlink() == Path("text")
    assert {name: path.read_bytes() for name, path in found.items()} == files
    assert {path.stat().st_mode & 0o777 for path in found.values()} == {0o640}


def test_damaged_data_is_told_and_does_no_harm(unpacker: Path, tmp_path: Path) -> None:
    packed = gzip(tar(contents()), 6)
    chance = random.Random(2)
    for _ in range(60):
        data = bytearray(packed)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(10, len(data))] ^= 1 << chance.randrange(8)
        done = unpack(unpacker, bytes(data), tmp_path)
        assert done.returncode in (0, 1), done.stderr
        assert done.stderr == b""
        assert done.returncode == 1 or bytes(data) == packed or data[:-4] == packed[:-4]


@pytest.mark.parametrize("size", [0, 1, 17, 18, 100, 5000])
def test_a_cut_file_is_told(size: int, unpacker: Path, tmp_path: Path) -> None:
    done = unpack(unpacker, gzip(tar(contents()))[:size], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, DAMAGED, b"")


@pytest.mark.parametrize("name", ["/tmp/outside", "../outside", "folder/../../outside"])
def test_nothing_is_written_outside(name: str, unpacker: Path, tmp_path: Path) -> None:
    done = unpack(unpacker, gzip(tar({name: b"x"})), tmp_path)
    assert (done.returncode, done.stderr) == (1, b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["packed", "target"]
