"""Peers whose connections and sessions go on in the program that takes a server's place."""

from __future__ import annotations

from execserver.access.identity import Authenticator, Grant, Identity
from execserver.access.tokens.holder import Holder
from execserver.handover.records import PackedIdentity

_NO_LIST = "this server takes no execserver tokens any more"


def pack(identity: Identity) -> PackedIdentity:
    """Return what `unpacked` makes an equal identity of; no secret is in it."""
    grant = None
    if identity.grant is not None:
        roots = identity.grant.roots
        grant = (None if roots is None else list(roots), identity.grant.read_only, identity.grant.network)
    token = None
    if isinstance(identity, Holder) and identity.token is not None:
        token = (identity.token[0], list(identity.token[1]))
    return PackedIdentity(identity.way, identity.name, grant, token)


def unpacked(packed: PackedIdentity, authenticator: Authenticator | None) -> Identity:
    """Return an identity that was packed.  A token is asked for anew: it may have lapsed meanwhile."""
    grant = None
    if packed.grant is not None:
        roots, read_only, network = packed.grant
        grant = Grant(None if roots is None else tuple(roots), read_only, network)
    if packed.token is None or grant is None:
        return Identity(packed.way, packed.name, grant)
    from execserver.access.tokens.authenticator import TokenAuthenticator  # late: no other mode needs them

    if isinstance(authenticator, TokenAuthenticator):
        token_id, caveats = packed.token
        return authenticator.holder(token_id, tuple(caveats))
    return Holder(packed.name, grant, lambda now: _NO_LIST)
