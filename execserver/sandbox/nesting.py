"""Nested sandboxes: whether commands may make sandboxes of their own.  Whoever starts the server chooses.

The price is that such commands can write to FIFOs outside the writable roots: Landlock would close these, but
lets nobody mount anything.
"""

from __future__ import annotations

from execserver.sandbox.plan import SandboxPlan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = b"EXECSERVER_ALLOW_NESTED_SANDBOXES"


def allowed(environ: Mapping[bytes, bytes]) -> bool:
    """Tell whether an environment, which is the server's and never a request's, allows them."""
    return environ.get(VARIABLE) == b"1"


def with_nesting(plan: SandboxPlan, environ: Mapping[bytes, bytes]) -> SandboxPlan:
    """Return the plan, changed to allow nested sandboxes where the environment does."""
    if not allowed(environ):
        return plan
    fields = {name: getattr(plan, name) for name in plan.__slots__}
    return SandboxPlan(**{**fields, "nesting": True})
