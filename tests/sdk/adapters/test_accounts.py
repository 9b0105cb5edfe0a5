"""Who may run commands as whom, and how."""

from __future__ import annotations

import os
import subprocess

import pytest

from execserver_adapters._accounts import Account, UserUnsupported, account_of, probe_argv

AS_ROOT = "0\n/usr/bin/setpriv\nann:x:1000:1001:Ann:/home/ann:/bin/bash\n"
AS_ANN = "1000\n/usr/bin/setpriv\nann:x:1000:1001:Ann:/home/ann:/bin/bash\n"
BOB = "1000\n/usr/bin/setpriv\nbob:x:1002:1002::/home/bob:/bin/sh\n"


def test_root_becomes_another_user_by_setpriv() -> None:
    account = account_of("ann", AS_ROOT, confined=False)
    assert account.argv(["id", "-u"]) == [
        "/usr/bin/setpriv",
        "--reuid=1000",
        "--regid=1001",
        "--init-groups",
        "--",
        "id",
        "-u",
    ]
    assert account.env({"A": "1", "HOME": "/h"}) == {
        "HOME": "/h",
        "USER": "ann",
        "LOGNAME": "ann",
        "A": "1",
    }


def test_the_servers_own_user_needs_nothing() -> None:
    account = account_of("ann", AS_ANN, confined=True)
    assert account.argv(["id"]) == ["id"]
    assert account.env({"A": "1"}) == {"A": "1"}


@pytest.mark.parametrize(
    ("output", "confined", "reason"),
    [
        (AS_ROOT, True, "inside a sandbox"),
        (BOB, False, "only as root"),
        ("0\n\nann:x:1000:1001:Ann:/home/ann:/bin/bash\n", False, "setpriv"),
        ("0\nsetpriv\nann:x:1000:1001:Ann:/home/ann:/bin/bash\n", False, "setpriv"),
        ("0\n/usr/bin/setpriv\n", False, "no user"),
        ("0\n/usr/bin/setpriv\nann:x:many:1001:Ann:/home/ann:\n", False, "no user"),
        ("", False, "no user"),
        ("sh: not found\n\n\n", False, "no user"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(output: str, confined: bool, reason: str) -> None:
    with pytest.raises(UserUnsupported, match=reason):
        account_of("ann", output, confined=confined)


@pytest.mark.parametrize("name", ["", "-n", "a:b", "a/b", "a\nb", "*", "a?", "a[b]", "a\\b", "a\0b"])
def test_what_is_no_name_is_never_asked_for(name: str) -> None:
    with pytest.raises(UserUnsupported, match="name"):
        probe_argv(name)


@pytest.mark.parametrize("shell_path", [None, ""])
@pytest.mark.parametrize("user", ["root", "0"])
def test_the_probe_finds_users_by_name_and_by_number(user: str, shell_path: str | None) -> None:
    argv = probe_argv(user)
    if shell_path is not None:  # as on a box without getent
        argv[2] = argv[2].replace("command -v getent", "false")
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    account = account_of(user, done.stdout, confined=False) if os.geteuid() == 0 else None
    if account is None:
        assert done.stdout.splitlines()[2].startswith("root:")
    else:
        assert (account.name, account.uid, account.setpriv) == ("root", 0, "")


def test_the_probe_says_nothing_of_an_unknown_user() -> None:
    done = subprocess.run(probe_argv("no-such-user-here"), capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 2
    with pytest.raises(UserUnsupported, match="no-such-user-here"):
        account_of("no-such-user-here", done.stdout, confined=False)


def test_an_account_is_a_plain_value() -> None:
    assert Account("ann", 1, 2, "/home/ann").argv(("a",)) == ["a"]
