"""Whether commands may make sandboxes of their own inside: the choice of who starts the server."""

from __future__ import annotations

from execserver.sandbox.plan import ViewPlan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = b"EXECSERVER_ALLOW_NESTED_SANDBOXES"


def allowed(environ: Mapping[bytes, bytes]) -> bool:
    """Tell whether an environment, which is never a request's, allows it."""
    return environ.get(VARIABLE) == b"1"


def with_nesting(plan: ViewPlan, environ: Mapping[bytes, bytes]) -> ViewPlan:
    """Return a plan that allows it where the environment does."""
    if not allowed(environ):
        return plan
    fields = {name: getattr(plan, name) for name in plan.__slots__}
    return ViewPlan(**{**fields, "nesting": True})
