"""The fatal errors of remote mode.  Each text is printed after `Error: `."""

from __future__ import annotations


class RemoteError(Exception):
    """Remote mode cannot start or go on; `cause` holds the text of an underlying error, if there is one.

    `is_transient` says that another try may help, `is_unknown` that the registry knows no such environment.
    """

    is_transient = False
    is_unknown = False

    def __init__(self, text: str, cause: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.cause = cause

    @property
    def report(self) -> str:
        """The text with its cause, as it is printed."""
        return f"{self.text}\n\nCaused by:\n    {self.cause}" if self.cause else self.text


class ConfigurationError(RemoteError):
    """The configuration cannot be used."""


class SignInError(RemoteError):
    """There is no usable credential, or it was refused."""


class RegistryError(RemoteError):
    """The registry refused a request, or could not be asked."""


def one_line(text: str, characters: int = 200) -> str:
    """Return a text of a peer for a log line: shortened, without control characters."""
    if len(text) <= characters and text.isprintable():
        return text
    shown = "".join(each if each.isprintable() else "?" for each in text[: characters + 1])
    return shown if len(shown) <= characters else f"{shown[:characters]}..."
