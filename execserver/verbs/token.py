"""`execserver token`: tokens for a listener, each with what its holder may do.

A token is printed alone on stdout, so that a script can read it, and read from stdin, never from an argument:
other users of the machine see those.
"""

from __future__ import annotations

import json
import os
import sys
import time

from execserver import spans
from execserver.arguments import Mistake, Parsed, Program, read_table
from execserver.leaving import failure, put, until_left
from execserver.verbs.usage import carry_out

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.access.tokens.store import Issued

HELP = """\
Manage tokens that let their holders connect, and say what they may do at most.

Usage: execserver token new [OPTIONS]
       execserver token narrow [OPTIONS] < TOKEN
       execserver token list [--json]
       execserver token revoke <TOKEN-ID>

Options of `new` and `narrow`:
  --until <TIME>            How long it counts: 90s, 15m, 8h or 7d from now, or a time in UTC such as
                            2030-01-31T12:00:00Z. Without it a token counts until it is revoked.
  --roots <DIR>             The only folder in which the holder may write; further folders may follow it, or
                            another --roots.
  --read-only               The holder may write nowhere.
  --no-network              Neither the holder's commands nor its HTTP requests get the network.
  --label <NAME>            Its name in lists and logs: up to 64 letters, digits, `_` and `-`.

Options:
  --json                    `list` prints one JSON array, for programs.
  -h, --help                Print this text and exit.

`new` prints a token once and stores no secret of it. `narrow` reads a token from stdin and prints one that
may do less, on any machine and without the server; nobody can make one that may do more. `revoke` takes back
a token with everything narrowed from it.
A token without options lets its holder do everything that the server's user may do.

The tokens are listed in ~/.config/execserver/tokens, or in the folder that EXECSERVER_TOKEN_STORE names. No
sandboxed command can look into it.
"""

_PROGRAM = "execserver token"
_UNTIL, _ROOTS, _LABEL = "--until", "--roots", "--label"
_READ_ONLY, _NO_NETWORK = "--read-only", "--no-network"
_CAVEATS = (_UNTIL, _ROOTS, _READ_ONLY, _NO_NETWORK, _LABEL)
_JSON = "--json"
_TIME = "%Y-%m-%dT%H:%M:%SZ"


def main() -> int:
    """Do what the arguments say; return 0, 1 if that cannot be done, 2 for wrong usage."""
    return until_left(_main)


def _main() -> int:
    from execserver.access.tokens.store import TokenStoreError

    actions = {"new": _new, "narrow": _narrow, "list": _list, "revoke": _revoke}
    try:
        return carry_out(_PROGRAM, sys.argv[1:], actions, HELP)
    except TokenStoreError as error:
        raise failure(str(error)) from None


def _program(action: str, usage: str, *options: str, operands: tuple[str, ...] = ()) -> Program:
    table = read_table(HELP, repeatable=frozenset({_ROOTS}))
    known = {name: option for name, option in table.items() if name in (*options, "--help")}
    takes_more = _ROOTS in options
    return Program(f"{_PROGRAM} {action}", known, lambda: HELP, "", operands, takes_more, usage)


def _new(given: list[str]) -> int:
    from execserver.access.tokens import store

    now = time.time()
    caveats = _caveats("new", given, now, _own_folder)
    folder = store.default_folder(os.environb)
    token = store.issue(folder, caveats, now)
    _print(token.text)
    shown = _row(store.Issued(token.id, token.caveats, int(now)), now)
    sys.stderr.write(f"token {shown}\nin {os.fsdecode(folder)}; it is shown this once\n")
    return 0


def _narrow(given: list[str]) -> int:
    from execserver.access.tokens import chain
    from execserver.access.tokens.caveats import BadCaveat

    caveats = _caveats("narrow", given, time.time(), _named_folder)
    if not caveats:
        raise failure("there is nothing to take away: say --until, --roots, --read-only or --no-network")
    text = sys.stdin.readline(chain.MAX_TOKEN_BYTES + 2).strip()
    try:
        token = chain.narrowed(chain.parsed(text), caveats)
    except chain.BadToken as error:
        raise failure(f"stdin holds no token: {error}") from None
    except BadCaveat as error:
        raise failure(f"this token cannot be narrowed so: {error}") from None
    _print(token.text)
    return 0


def _list(given: list[str]) -> int:
    from execserver.access.tokens import store

    options = _program("list", f"[{_JSON}]", _JSON).parse(given).options
    tokens = store.read(store.default_folder(os.environb)).tokens.values()
    now = time.time()
    if _JSON in options:
        sys.stdout.write(json.dumps([_members(token, now) for token in tokens], indent=1) + "\n")
    else:
        sys.stdout.writelines(f"{_row(token, now)}\n" for token in tokens)
    return 0


def _revoke(given: list[str]) -> int:
    from execserver.access.tokens import store

    parsed = _program("revoke", "<TOKEN-ID>", operands=("<TOKEN-ID>",)).parse(given)
    (token_id,) = parsed.operands
    folder = store.default_folder(os.environb)
    if not store.revoke(folder, token_id, time.time()):
        # Not its text: somebody may have given the token itself.
        raise failure(f"there is no such valid token in {os.fsdecode(folder)}; see `execserver token list`")
    sys.stderr.write(f"token {token_id} is revoked\n")
    return 0


def _caveats(action: str, given: list[str], now: float, folder_of: Callable[[str], bytes]) -> tuple[str, ...]:
    """Return the caveats that the options of an action ask for; raise Leave."""
    from execserver.access.tokens.caveats import LABEL, BadCaveat, caveats

    program = _program(action, "[OPTIONS]", *_CAVEATS)
    parsed = program.parse(given)
    options = parsed.options
    folders = _folders(program, parsed)
    label = options.get(_LABEL)
    if label is not None and not LABEL.fullmatch(label):
        raise failure(f"invalid label '{label}': up to 64 letters, digits, `_` and `-`")
    try:
        return caveats(
            until=None if _UNTIL not in options else _second(options[_UNTIL], now),
            roots=[folder_of(folder) for folder in folders] or None,
            read_only=_READ_ONLY in options,
            network=_NO_NETWORK not in options,
            label=label,
        )
    except BadCaveat as error:
        raise failure(str(error)) from None


def _folders(program: Program, parsed: Parsed) -> list[str]:
    """Return the values of --roots, and the further folders behind one."""
    named = [value for word in parsed.words for name, _, value in [word.partition("=")] if name == _ROOTS]
    if parsed.operands and not named:
        raise program.mistaken(Mistake(f"unexpected argument '{parsed.operands[0]}' found"))
    return [*named, *parsed.operands]


def _second(text: str, now: float) -> int:
    """Return the Unix time that a text means."""
    if (span := spans.seconds(text)) is not None:
        return int(now) + span
    try:
        import calendar

        return calendar.timegm(time.strptime(text, _TIME))
    except (ValueError, OverflowError):
        raise failure(f"invalid time '{text}'; expected e.g. `8h` or `2030-01-31T12:00:00Z`") from None


def _own_folder(text: str) -> bytes:
    """Return a folder of this machine with symlinks resolved: a token names the folder itself."""
    path = os.path.realpath(os.fsencode(text))
    if not text or not os.path.isdir(path):
        raise failure(f"{text or '``'}: there is no such folder")
    return path


def _named_folder(text: str) -> bytes:
    """Return a folder by its name: it is one of the server's machine, which may be another."""
    if not text.startswith("/"):
        raise failure(f"{text or '``'}: a root is an absolute path of the server's machine")
    return os.fsencode(text if text == "/" else text.rstrip("/"))


def _print(token: str) -> None:
    put(f"{token}\n")


def _members(token: Issued, now: float) -> dict[str, object]:
    left = token.restrictions
    grant = left.grant()
    return {
        "id": token.id,
        "label": "/".join(left.labels) or None,
        "created": _shown_time(token.created),
        "until": None if left.until is None else _shown_time(left.until),
        "state": _state(token, now),
        "roots": None if grant.roots is None else [_printable(root) for root in grant.roots],
        "readOnly": grant.read_only,
        "network": grant.network,
    }


def _row(token: Issued, now: float) -> str:
    left = token.restrictions
    grant = left.grant()
    may = ["read only"] if grant.read_only else []
    if grant.roots is not None:
        may.append(f"roots {' '.join(map(_printable, grant.roots))}")
    if not grant.network:
        may.append("no network")
    until = "-" if left.until is None else _shown_time(left.until)
    label = "/".join(left.labels) or "-"
    limits = ", ".join(may) or "no limits"
    return f"{token.id}  {_state(token, now):<7}  {until:<20}  {label}  {limits}"


def _state(token: Issued, now: float) -> str:
    if token.revoked is not None:
        return "revoked"
    return "expired" if token.over(now) else "valid"


def _shown_time(second: int) -> str:
    try:
        return time.strftime(_TIME, time.gmtime(second))
    except (OverflowError, ValueError, OSError):
        return str(second)


def _printable(path: str) -> str:
    """Return a path without what a terminal would obey."""
    shown = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return shown if shown.isprintable() else ascii(shown)[1:-1]
