"""What a BOX may be: a URL, or a name.  Pure: nothing is looked up and nothing is opened.

ssh's own command line is made of the host in a URL, so a host is taken only if it cannot be an option.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from execserver.client.carriers import urls

FORMS: Final = "ws://HOST:PORT, wss://HOST, unix:/PATH, ssh:HOST or relay:https://RELAY/ENVIRONMENT"
SCHEMES: Final = ("ws", "wss", "unix", "ssh", "relay")
# Compiled when asked for: a short command asks for neither, and each takes as long as loading a module.
_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
_SSH: Final = (
    r"(?:(?P<user>[A-Za-z0-9_.][A-Za-z0-9_.@+-]*)@)?"
    r"(?P<host>\[[0-9A-Fa-f:.%a-z]+\]|[A-Za-z0-9_.][A-Za-z0-9_.-]*)"
    r"(?::(?P<port>[0-9]{1,5}))?(?P<program>/[A-Za-z0-9_./+,@%-]+)?"
)
_MAX_URL: Final = 4096


class BadBox(ValueError):
    """The text is neither a URL of a box nor a name; the message says what is wrong, `cure` what to do."""

    def __init__(self, text: str, cure: str = "") -> None:
        super().__init__(text)
        self.cure = cure or f"a box is {FORMS}, or a name from `execserver box add`"


class Server(NamedTuple):
    """A server that listens: `url` as the Python client takes it."""

    url: str


class Ssh(NamedTuple):
    """A host of the system's ssh, and the program to start there."""

    host: str
    port: str | None
    program: str

    def command(self, *options: str) -> list[str]:
        """Return the words that start a server there."""
        port = () if self.port is None else ("-p", self.port)
        # -T: no terminal, which would change bytes; no forwarding of anything a configuration asks for.
        fixed = ("-T", "-oClearAllForwardings=yes", *options)
        return ["ssh", *fixed, *port, "--", self.host, f"{self.program} --listen stdio"]


class Relay(NamedTuple):
    """An environment behind a relay."""

    url: str
    environment_id: str


class Own(NamedTuple):
    """No box at all: a private server, started by this command and ended with its client."""

    command: tuple[str, ...]


Address = Server | Ssh | Relay | Own


def is_name(text: str) -> bool:
    """Return whether a text can be the name of a box."""
    return re.fullmatch(_NAME, text) is not None


def parse(url: str) -> Address:
    """Return what a URL leads to.  Raises BadBox."""
    if len(url) > _MAX_URL or not url.isprintable():
        raise BadBox("the URL of a box is one line of printable characters, 4096 at most")
    scheme, colon, rest = url.partition(":")
    if not colon:
        raise BadBox(f"{url!r} is no URL")
    if scheme in ("ws", "wss"):
        return _listening(url)
    makers: dict[str, Callable[[str], Address]] = {"unix": _unix, "ssh": _ssh, "relay": _relay}
    if scheme not in makers:
        raise BadBox(f"{scheme!r} in {url!r} leads to no box")
    return makers[scheme](rest)


def _listening(url: str) -> Server:
    if urls.usual(url) is not None:
        return Server(url)
    from urllib.parse import urlsplit  # late: hardly any box needs it

    try:
        parts = urlsplit(url)
        valid = bool(parts.hostname) and (parts.port is None or parts.port > 0)
        secret = parts.password is not None or parts.username is not None
    except ValueError:
        valid = secret = False
    if secret:
        raise BadBox("a URL must hold no password: others could see it", "use --token-file")
    if not valid:
        raise BadBox(f"{url!r} has no valid host and port")
    return Server(url)


def _unix(rest: str) -> Server:
    path = rest.removeprefix("//") if rest.startswith("///") else rest
    if not path.startswith("/") or path.startswith("//"):
        raise BadBox(f"'unix:{rest}' has no absolute path", "write unix:/PATH")
    return Server(f"unix://{path}")


def _ssh(rest: str) -> Ssh:
    found = re.fullmatch(_SSH, rest.removeprefix("//"))
    if found is None:
        raise BadBox(
            f"'ssh:{rest}' names no host", "write ssh:[USER@]HOST[:PORT][/PATH/TO/execserver], or a Host of "
            "~/.ssh/config"
        )  # fmt: skip
    user = f"{found['user']}@" if found["user"] else ""
    return Ssh(user + found["host"].strip("[]"), found["port"], found["program"] or "execserver")


def _relay(rest: str) -> Relay:
    base, slash, environment_id = rest.rstrip("/").rpartition("/")
    if not slash or not base.startswith(("https://", "http://")) or base.endswith("/"):
        raise BadBox(f"'relay:{rest}' has no relay and environment", "write relay:https://RELAY/ENVIRONMENT")
    if re.fullmatch(r"[A-Za-z0-9_-]{1,256}", environment_id) is None:
        raise BadBox(f"{environment_id!r} is no environment: letters, digits, `_` and `-`")
    return Relay(base, environment_id)
