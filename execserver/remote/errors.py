"""What ends remote mode for good.  Each text is what the user is shown behind `Error: `."""

from __future__ import annotations


class RemoteError(Exception):
    """Remote mode cannot start or go on; `cause` says more where something below failed."""

    def __init__(self, text: str, cause: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.cause = cause

    @property
    def report(self) -> str:
        """The text with its cause, as it is printed."""
        return f"{self.text}\n\nCaused by:\n    {self.cause}" if self.cause else self.text


class ConfigurationError(RemoteError):
    """Something the user has configured cannot be used."""


class SignInError(RemoteError):
    """There is no usable credential, or it was refused."""


class RegistryError(RemoteError):
    """The registry refused a request, or could not be asked."""


def one_line(text: str, characters: int = 200) -> str:
    """Return what somebody else has written for a line of a log: short, without control characters."""
    if len(text) <= characters and text.isprintable():
        return text
    shown = "".join(each if each.isprintable() else "?" for each in text[: characters + 1])
    return shown if len(shown) <= characters else f"{shown[:characters]}..."
