"""Targets that take nothing: a full disk, a folder that is read only, a reader that is gone."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.box.boxes import Person
from tests.support.server_process import ServerProcess

FULL = "No space left on device"


@pytest.fixture
def box(server: ServerProcess, person: Person) -> Person:
    """A person whose default box is the server."""
    person.environ["EXECSERVER_BOX"] = server.url
    return person


@pytest.mark.long
def test_output_that_cannot_be_written_is_told(box: Person, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    done = box.run("run", "-d", "--name", "full", "--", "echo", "out")
    assert done.returncode == 0
    for status, words in (
        (1, ["cp", f":{tmp_path}/file", "-"]),
        (1, ["logs", "-f", "full"]),
        (255, ["run", "--", "echo", "out"]),
    ):
        with open("/dev/full", "wb") as full:
            process = box.start(*words, stdout=full)
            _, err = process.communicate(timeout=30)
        assert (process.returncode, err.count(b"\n")) == (status, 1), err
        assert f"the output cannot be written: {FULL}".encode() in err


@pytest.mark.long
def test_a_reader_that_is_gone_ends_a_copy_as_it_ends_a_command(box: Person, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1_000_000))
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        os.close(reading)
        process = box.start("cp", f":{tmp_path}/file", "-", stdout=pipe)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (128 + signal.SIGPIPE, b"")


def without_mounts() -> str:
    """Return why nothing can be mounted apart; empty if it can."""
    words = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    done = subprocess.run(words, capture_output=True, check=False)
    return "" if done.returncode == 0 else "nothing can be mounted in a namespace of its own here"


SCRIPT = """
set -u
mount -t tmpfs -o size=256k none "$PLACE" || exit 90
head -c 1000000 /dev/urandom > "$SOURCE"
mkdir -p "$PLACE/here" "$PLACE/config" "$PLACE/run"
"$@" --listen unix://"$PLACE/run/socket" > "$LOG" 2>&1 &
server=$!
while ! [ -S "$PLACE/run/socket" ]; do kill -0 $server || exit 91; sleep 0.1; done
export EXECSERVER_BOX=unix:"$PLACE/run/socket" EXECSERVER_BOXES="$PLACE/config/boxes.toml"
"$@" box add -- first ws://127.0.0.1:1 || exit 92
"$@" cp -q ":$SOURCE" "$PLACE/here/back"; echo "from: $?"
ls -A "$PLACE/here"
"$@" cp -q "$SOURCE" ":$PLACE/here/there"; echo "to: $?"
rm -rf "$PLACE/here"
head -c 1000000 /dev/zero > "$PLACE/fill" 2> /dev/null
"$@" box add second ws://127.0.0.1:1; echo "add: $?"
"$@" run -d --name much -- seq 1 400000 || exit 93
"$@" wait much; echo "wait: $?"
"$@" logs --tail 1 much; echo "logs: $?"
rm "$PLACE/fill"
grep -c url "$PLACE/config/boxes.toml"
ls -A "$PLACE/config"
mount --bind "$PLACE" "$FIXED" && mount -o remount,bind,ro "$FIXED" || exit 94
export EXECSERVER_BOXES="$FIXED/config/boxes.toml"
"$@" cp -q ":$SOURCE" "$FIXED/back"; echo "from: $?"
"$@" cp -q "$SOURCE" ":$FIXED/there"; echo "to: $?"
"$@" box add second ws://127.0.0.1:1; echo "add: $?"
kill $server
wait $server
"""


@pytest.mark.long
@pytest.mark.skipif(bool(without_mounts()), reason=without_mounts() or "never")
def test_a_full_disk_and_one_that_is_read_only_are_told_and_leave_nothing_cut(
    person: Person, tmp_path: Path
) -> None:
    from tests.support.relay_process import program

    places = {name.upper(): str(tmp_path / name) for name in ("place", "fixed", "source", "log")}
    place = tmp_path / "place"
    place.mkdir()
    (tmp_path / "fixed").mkdir()
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", SCRIPT, "sh", *program()],
        env=person.environ | places | {"TMPDIR": str(place), "XDG_RUNTIME_DIR": str(place / "run")},
        cwd=tmp_path,
        capture_output=True,
        timeout=55,
        check=False,
    )
    err = done.stderr.decode()
    assert "Traceback" not in err + (tmp_path / "log").read_text()
    assert done.stdout.decode().splitlines() == [
        *("from: 1", ".back.execserver-part", "to: 1", "add: 1", "much", "wait: 0", "400000", "logs: 0"),
        *("1", "boxes.toml", "boxes.toml.lock", "from: 1", "to: 1", "add: 1"),
    ], err
    assert err.count(FULL) >= 3, err
    assert (
        err.count("What to do: free some space there, and copy once more with --resume: it goes on") == 2
    ), err
    assert f"bytes are gone: {FULL}" in err
    assert err.count("Read-only file system") >= 3, err
