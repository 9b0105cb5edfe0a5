"""The variables that lead a process to its proxy (wire contract, section 8.9)."""

from __future__ import annotations

_HTTP = (
    *("HTTP_PROXY", "HTTPS_PROXY", "WS_PROXY", "WSS_PROXY"),
    *("http_proxy", "https_proxy", "ws_proxy", "wss_proxy"),
    *("YARN_HTTP_PROXY", "YARN_HTTPS_PROXY", "BUNDLE_HTTP_PROXY", "BUNDLE_HTTPS_PROXY"),
    *("PIP_PROXY", "DOCKER_HTTP_PROXY", "DOCKER_HTTPS_PROXY"),
    *("NPM_CONFIG_PROXY", "NPM_CONFIG_HTTP_PROXY", "NPM_CONFIG_HTTPS_PROXY"),
    *("npm_config_proxy", "npm_config_http_proxy", "npm_config_https_proxy"),
)
_ANY = ("ALL_PROXY", "all_proxy", "FTP_PROXY", "ftp_proxy")
_NONE = ("NO_PROXY", "no_proxy", "npm_config_noproxy", "NPM_CONFIG_NOPROXY", "BUNDLE_NO_PROXY")
_CERTIFICATES = (
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO"),
    *("CARGO_HTTP_CAINFO", "CODEX_CA_CERTIFICATE", "PIP_CERT", "BUNDLE_SSL_CA_CERT"),
    *("NPM_CONFIG_CAFILE", "npm_config_cafile"),
)
_LOCAL = "localhost,127.0.0.1,::1,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16"


def proxy_environment(http_port: int, socks_port: int | None, *, local_binding: bool) -> dict[bytes, bytes]:
    """Return the variables of a process whose proxy listens on these ports of 127.0.0.1."""
    http = f"http://127.0.0.1:{http_port}"
    socks = http if socks_port is None else f"socks5h://127.0.0.1:{socks_port}"
    variables = {
        **dict.fromkeys(_HTTP, http),
        **dict.fromkeys(_ANY, socks),
        **dict.fromkeys(_NONE, _LOCAL if local_binding else ""),
        "CODEX_NETWORK_PROXY_ACTIVE": "1",
        "ELECTRON_GET_USE_PROXY": "true",
        "NODE_USE_ENV_PROXY": "1",
        "CODEX_NETWORK_ALLOW_LOCAL_BINDING": "1" if local_binding else "0",
    }
    return {name.encode(): value.encode() for name, value in variables.items()}


def trusting(bundle: bytes) -> dict[bytes, bytes]:
    """Return the variables that have programs trust the certificates in a file, and no others."""
    return {name.encode(): bundle for name in _CERTIFICATES}
