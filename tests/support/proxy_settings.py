"""Settings of a network proxy as clients send them."""

from __future__ import annotations

from tests.support.peer import Json


def proxy_settings(*allowed: str, **more: Json) -> dict[str, Json]:
    """Return the settings of a proxy that lets some hosts through, with further members or other values."""
    return {
        "enabled": True,
        "enableSocks5": False,
        "enableSocks5Udp": False,
        "allowUpstreamProxy": False,
        "dangerouslyAllowAllUnixSockets": False,
        "mode": "full",
        "domains": dict.fromkeys(allowed, "allow"),
        "allowLocalBinding": False,
        **more,
    }
