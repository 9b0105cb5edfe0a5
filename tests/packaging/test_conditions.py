"""What containers and hardened machines take away, made by hand: the file still works."""

from __future__ import annotations

import os

import pytest

from tests.support.one_file import Box

# What is done before; the file unpacks where it still may.
CONDITIONS = {
    "no /sys": "mount -t tmpfs none /sys",
    "no /proc/sys": "mount -t tmpfs none /proc/sys",
    "no /dev/shm": "mount -t tmpfs none /dev/shm -o ro",
    "home may not be executed from": 'mount -t tmpfs -o noexec none "$HOME"',
    "home is read-only": 'mount -t tmpfs -o ro none "$HOME"',
    "little in /dev": "mount --bind /dev/null /dev/full; mount --bind /dev/null /dev/tty",
}
HIDDEN = "mount -t proc -o hidepid=2 proc /proc"  # takes a process namespace
READ_ONLY = "mount -t tmpfs none /tmp; mount -o remount,bind,ro /"


@pytest.mark.unpacked
@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_file_works_without(condition: str, one_file: Box) -> None:
    done = one_file.run_in_new_mounts(f'{CONDITIONS[condition]}; exec "$1" self-test')
    assert done.returncode == 0, done.stdout + done.stderr
    assert b"\nOK in " in done.stdout


def test_the_file_works_where_the_processes_of_others_are_hidden(one_file: Box) -> None:
    script = f'exec unshare --pid --fork sh -euc \'{HIDDEN}; "$1" self-test\' sh "$1"'
    done = one_file.run_in_new_mounts(script)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_file_works_on_a_read_only_root(one_file: Box) -> None:
    if os.geteuid():
        pytest.skip("only root may change the root directory's mount")
    done = one_file.run_in_new_mounts(f'{READ_ONLY}; exec "$1" self-test')
    assert done.returncode == 0, done.stdout + done.stderr
