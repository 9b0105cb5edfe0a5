"""The variables of an agent's commands: which of the server's they inherit."""

from __future__ import annotations

from typing import Final

from execserver_client import ExecEnvPolicy, ExecEnvPolicyInherit

INHERITED: Final = ("core", "all", "none")


def env_policy_of(inherit: str) -> ExecEnvPolicy:
    """Return the policy of a name: `core` leaves PATH, HOME and the like, `all` everything, `none` nothing.

    Names that contain KEY, SECRET or TOKEN are left out in any case.  Raises ValueError.
    """
    if inherit not in INHERITED:
        raise ValueError(f"commands inherit one of {', '.join(INHERITED)}, not {inherit!r}")
    return ExecEnvPolicy(
        inherit=ExecEnvPolicyInherit(inherit),
        ignore_default_excludes=False,
        exclude=(),
        set={},
        include_only=(),
    )
