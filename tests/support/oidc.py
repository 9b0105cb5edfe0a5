"""An OpenID Connect provider as a test double: real keys and signatures, real HTTP, on the loopback.

No real provider is asked by any test.  The double signs what a test says, also what no provider would.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

Jwk = dict[str, Any]
Claims = dict[str, Any]


def encoded(data: bytes) -> str:
    """Return base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value: int, length: int | None = None) -> str:
    """Return an unsigned number as keys write it."""
    return encoded(value.to_bytes(length or (value.bit_length() + 7) // 8, "big"))


class SigningKey:
    """One key of a provider: what it publishes, and how it signs."""

    def __init__(self, algorithm: str, kid: str | None, jwk: Jwk, sign: Callable[[bytes], bytes]) -> None:
        self.algorithm = algorithm
        self.jwk = jwk | ({} if kid is None else {"kid": kid})
        self.kid = kid
        self.sign = sign

    def token(self, claims: Claims | bytes, **header: Any) -> str:
        """Return a token; members of the header that are None are left out."""
        whole = {"alg": self.algorithm, "kid": self.kid, "typ": "JWT"} | header
        shown = json.dumps({name: value for name, value in whole.items() if value is not None}).encode()
        return self.raw(shown, claims if isinstance(claims, bytes) else json.dumps(claims).encode())

    def raw(self, header: bytes, claims: bytes) -> str:
        """Return a token with these bytes as its parts."""
        signed = f"{encoded(header)}.{encoded(claims)}"
        return f"{signed}.{encoded(self.sign(signed.encode()))}"


def rsa_key(kid: str | None = "rsa", bits: int = 2048) -> SigningKey:
    """Make a key for RS256."""
    key = rsa.generate_private_key(65537, bits)
    public = key.public_key().public_numbers()
    jwk = {"kty": "RSA", "n": number(public.n), "e": number(public.e)}
    return SigningKey("RS256", kid, jwk, lambda data: key.sign(data, padding.PKCS1v15(), SHA256()))


def ec_key(kid: str | None = "ec") -> SigningKey:
    """Make a key for ES256."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_numbers()
    jwk = {"kty": "EC", "crv": "P-256", "x": number(public.x, 32), "y": number(public.y, 32)}

    def sign(data: bytes) -> bytes:
        r, s = decode_dss_signature(key.sign(data, ec.ECDSA(SHA256())))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")

    return SigningKey("ES256", kid, jwk, sign)


def ed_key(kid: str | None = "ed") -> SigningKey:
    """Make a key for EdDSA."""
    key = ed25519.Ed25519PrivateKey.generate()
    data = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return SigningKey("EdDSA", kid, {"kty": "OKP", "crv": "Ed25519", "x": encoded(data)}, key.sign)


def key_set(*keys: SigningKey) -> bytes:
    """Return what a provider publishes of these keys."""
    return json.dumps({"keys": [key.jwk for key in keys]}).encode()


class Provider:
    """The double.  `keys` can change at any time; a path in `answers` is answered by that function."""

    def __init__(self, *keys: SigningKey) -> None:
        self.keys = list(keys)
        self.asked: list[str] = []
        self.answers: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        self.configuration: dict[str, Any] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider._answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def issuer(self) -> str:
        """Its URL, which its tokens name."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def claims(self, now: float, **more: Any) -> Claims:
        """Return the claims of a good token for the audience `box`."""
        return {"iss": self.issuer, "aud": "box", "sub": "ada", "exp": int(now) + 600} | more

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Provider:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append(handler.path)
        if handler.path in self.answers:
            self.answers[handler.path](handler)
        elif handler.path == CONFIGURATION:
            plain = {"issuer": self.issuer, "jwks_uri": f"{self.issuer}{KEYS}"}
            send(handler, json.dumps(plain | self.configuration).encode())
        else:
            send(handler, key_set(*self.keys))


CONFIGURATION, KEYS = "/.well-known/openid-configuration", "/keys"


def send(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200, **headers: str) -> None:
    """Answer with this body."""
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
