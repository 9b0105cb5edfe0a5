"""The masking of one process as its proxy has it: credentials, authority, and the file that is trusted."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from execserver.egress.environment import trusting
from execserver.egress.masking import Masking
from execserver.egress.patterns import ConfigError
from execserver.egress.providers import Auth, Provider, Unmaskable
from execserver.runtime_paths import certificate_folder
from execserver.services.egress.authority import Authority
from execserver.services.egress.ca_bundle import CaBundle, remove_stale, system_certificates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from execserver.handover.carrier import Incoming, Outgoing
    from execserver.http_client.tls import Tls
    from execserver.protocol.network import CredentialProviderConfig, NetworkProxyConfig
    from execserver.services.egress.service import EgressService

_log = logging.getLogger(__name__)

# What a client may configure, all together: more would only hold up the others.
_MAX_PROVIDERS = 64
_MAX_VARIABLES = 128
_MAX_CHARACTERS = 64 * 1024
_MAX_PATTERNS = 128
_MAX_DESTINATIONS = 128  # each is looked at for each connection, once for each variable
_MAX_WARNED = 64


class _Packed(msgspec.Struct, array_like=True, frozen=True):
    seed: bytes
    found: list[tuple[str, bytes, bytes, bytes]]
    key: bytes
    certificate: bytes
    path: bytes
    fd: int


class Masked:
    """What the proxy of one process needs; it owns the file."""

    def __init__(
        self, masking: Masking, authority: Authority, bundle: CaBundle, service: EgressService
    ) -> None:
        self.masking = masking
        self.authority = authority
        self._bundle = bundle
        self._service = service
        self._warned: set[str] = set()

    @property
    def environment(self) -> dict[bytes, bytes]:
        """The variables that have programs trust this proxy."""
        return trusting(self._bundle.path)

    def tls(self) -> Tls:
        """Return what connects to the hosts themselves.  Raises NoTrust and OSError."""
        return self._service.tls

    def told(self) -> None:
        """Log what stays unmasked."""
        for name, reason in self.masking.unmasked.items():
            _log.warning("the credential %s is not masked: %s", name, reason)

    def warn(self, host: str, text: str) -> None:
        """Log once for each host what keeps a program from it, which could fill the log."""
        level = logging.DEBUG if host in self._warned or len(self._warned) >= _MAX_WARNED else logging.WARNING
        self._warned.add(host)
        _log.log(level, "%s", text)

    def pack(self, out: Outgoing) -> bytes:
        """Return what `unpacked` takes."""
        key, certificate = self.authority.packed()
        packed = _Packed(
            self._service.masking_seed,
            self.masking.found(),
            key,
            certificate,
            self._bundle.path,
            out.keep(self._bundle.fd),
        )
        return msgspec.msgpack.encode(packed)

    def close(self) -> None:
        """Remove the file; a second call does nothing."""
        self._bundle.close()


def masked_of(config: NetworkProxyConfig, service: EgressService) -> Masked:
    """Return the masking of a new process, which has found no credential yet.

    Raises ConfigError, and FolderRefused or OSError if there can be no file.
    """
    masking = _masking(config, service)
    environ = service.environ
    folder = certificate_folder(environ)
    if not service.has_removed_stale:
        service.has_removed_stale = True
        remove_stale(folder)
    authority = Authority.new()
    bundle = CaBundle.new(folder, system_certificates(environ) + authority.pem)
    return Masked(masking, authority, bundle, service)


def unpacked(data: bytes, config: NetworkProxyConfig, service: EgressService, incoming: Incoming) -> Masked:
    """Return what a server before this one has packed; its processes go on with what they have.

    Raises ConfigError and Unmaskable where this program does not take what that one did.
    """
    packed = msgspec.msgpack.decode(data, type=_Packed)
    service.masking_seed = packed.seed
    masking = _masking(config, service)
    masking.find_again(packed.found)
    bundle = CaBundle(packed.path, incoming.take(packed.fd))
    return Masked(masking, Authority.unpacked(packed.key, packed.certificate), bundle, service)


def _masking(config: NetworkProxyConfig, service: EgressService) -> Masking:
    _check_size(config.credential_providers)
    providers, unmasked = _providers(config.credential_providers)
    return Masking(service.masking_seed, providers, unmasked)


def _check_size(configured: Mapping[str, CredentialProviderConfig]) -> None:
    if len(configured) > _MAX_PROVIDERS:
        raise ConfigError(f"more than {_MAX_PROVIDERS} credential providers")
    if sum(len(one.env) for one in configured.values()) > _MAX_VARIABLES:
        raise ConfigError(f"credential providers with more than {_MAX_VARIABLES} variables in all")
    if sum(len(one.patterns) for one in configured.values()) > _MAX_PATTERNS:
        raise ConfigError(f"credential providers with more than {_MAX_PATTERNS} patterns in all")
    if sum(len(one.url_prefixes) for one in configured.values()) > _MAX_DESTINATIONS:
        raise ConfigError(f"credential providers with more than {_MAX_DESTINATIONS} prefixes in all")
    texts = [text for one in configured.values() for text in (*one.env, *one.patterns, *one.url_prefixes)]
    if len(texts) + sum(map(len, texts)) > _MAX_CHARACTERS:
        raise ConfigError(f"credential providers with more than {_MAX_CHARACTERS} characters in all")


def _providers(configured: Mapping[str, CredentialProviderConfig]) -> tuple[list[Provider], dict[str, str]]:
    """Return the providers of a client, and which are none, with the reason."""
    found, bad = [], {}
    for name, one in configured.items():
        try:
            found.append(
                Provider(
                    name,
                    one.env,
                    one.url_prefixes,
                    patterns=one.patterns,
                    from_env=one.url_prefix_from_env,
                    auths=[Auth(each.value) for each in one.auth],
                    header=one.header,
                    prefix=one.prefix,
                )
            )
        except Unmaskable as error:
            bad[name] = str(error)
    return found, bad
