"""What of remote mode the command line names that this program has not, and kinds of credentials on stdin."""

from __future__ import annotations

from execserver.leaving import failure

STDIN_CREDENTIALS = ("registration-bearer", "executor-credential", "chatgpt-token")


def refuse_direct(words: list[str]) -> None:
    """Raise Leave where the transport is asked for that only the codex CLI has."""
    is_direct = "--remote-transport=direct" in words
    if "--aws-sigv4" in words and not is_direct:
        raise failure("--aws-sigv4 requires --remote-transport direct")
    if is_direct:
        raise failure(
            "`--remote-transport direct`, and with it AWS signing, is not part of this program",
            "leave it away if the registry has a relay, too; else use the codex CLI itself",
        )
