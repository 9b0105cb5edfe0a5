"""How an asyncio client gets to its executor: ask the registry, open a WebSocket to the rendezvous.

One connector serves one client; whom it may talk to is its `RelayAccess`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Final, NamedTuple

from websockets.uri import WebSocketURI

from execserver.client.errors import ConnectFailed, ConnectTimeout
from execserver.client.options import ExecServerClientConnectOptions, RemoteExecServerConnectArgs
from execserver.client.relay.access import RelayAccess
from execserver.http_client.proxy import Proxies
from execserver.http_client.url import BadUrl, Url
from execserver.protocol.errors import os_error_text
from execserver.remote.answers import BAD_BODY, CallFailed, Response, registry_environment
from execserver.remote.errors import RemoteError
from execserver.remote.registry_answers import Bundle, bundle, refusal, unanswered
from execserver.remote.rendezvous_urls import (
    REQUEST_ID,
    as_http,
    new_request_id,
    parse_rendezvous,
    upgrade_status,
    websocket_proxies,
)
from execserver.remote.requests import prepare_post
from execserver.wire import client_upgrade
from execserver_client._conversation import Conversation
from execserver_client._dial import Dialer, DialFailed
from execserver_client._http_answer import AnswerReader, BrokenAnswer

REGISTRY_S: Final = 10.0  # for one call, as in the contract
_MAX_HEAD_BYTES: Final = 16 * 1024
_UNAUTHORIZED: Final = 401
_SWITCHING: Final = 101
_PEER: Final = "the rendezvous"


class Upgraded(NamedTuple):
    """A connection on which frames can begin; `early` came behind the answer."""

    conversation: Conversation
    early: bytes


class _UpgradeRefused(ConnectFailed):
    """The rendezvous answered the upgrade with another status than 101."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{_PEER} answered {status}{f' ({reason})' if reason else ''}")
        self.status = status


class RelayConnector:
    """Makes the connections of one client to one environment."""

    def __init__(self, args: RemoteExecServerConnectArgs, environ: Mapping[str, str] | None = None) -> None:
        """Check the arguments, make keys.  Raises `RemoteConfigurationError` or `RemoteModeUnavailable`."""
        self.access = access = RelayAccess(args)
        self.options: ExecServerClientConnectOptions = args.options
        environ = registry_environment(os.environ if environ is None else environ)
        self._proxies = Proxies(environ)
        self._websocket_proxies = Proxies(websocket_proxies(environ))
        self._dialer = Dialer(environ, args.options)
        self._connect_url = f"{access.base_url}/cloud/environment/{access.environment_id}/connect"

    async def connect(self, timeout: float) -> tuple[Bundle, Upgraded]:
        """Ask the registry and connect, within `timeout` seconds; return a connection for frames.

        Raises `ConnectFailed` or `ConnectTimeout` for what may pass, `RegistryRefused` for a final refusal.
        """
        deadline = asyncio.timeout(timeout)
        try:
            async with deadline:
                found = await self._bundle()
                try:
                    return found, await self._open(found.url)
                except _UpgradeRefused as refused:
                    if refused.status != _UNAUTHORIZED:
                        raise
                found = await self._bundle()  # once more, as the reference: the URL was used or too old
                return found, await self._open(found.url)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise ConnectTimeout(f"the relay did not answer within {timeout:g} s") from None

    async def _bundle(self) -> Bundle:
        access = self.access
        try:
            try:
                response = await self._ask({"harness_public_key": access.keys.public.to_json()})
            except CallFailed as failed:
                raise unanswered(failed) from failed
            if not response.is_success:
                raise refusal(response)
            return access.accept(bundle(response, access.environment_id))
        except RemoteError as error:
            raise access.refused(error) from error

    async def _ask(self, body: object) -> Response:
        """Send a request to the registry and return the whole answer.  Raises CallFailed."""
        request = prepare_post(self._connect_url, self.access.headers, body, REGISTRY_S)
        failed = f"error sending request for url ({request.url.text})"
        is_answered = False
        deadline = asyncio.timeout(REGISTRY_S)
        try:
            async with deadline:
                conversation, proxy = await self._dialer.open(request.url, self._proxies, tunnels=False)
                try:
                    authorization = None if proxy is None else proxy.authorization
                    conversation.send(
                        request.encode(absolute=proxy is not None, proxy_authorization=authorization)
                    )
                    reader = AnswerReader()
                    while data := await conversation.receive():
                        is_answered = True
                        if (response := reader.feed(data)) is not None:
                            return response
                    return reader.end()
                finally:
                    await conversation.close()
        except BrokenAnswer as error:
            raise CallFailed(BAD_BODY if is_answered else failed, str(error)) from error
        except DialFailed as error:
            raise CallFailed(str(error)) from error
        except OSError as error:
            cause = "operation timed out" if deadline.expired() else _os_text(error)
            raise CallFailed(failed, cause) from error

    async def _open(self, url: str) -> Upgraded:
        """Connect and upgrade.  Raises `ConnectFailed`, with no part of the URL in its text."""
        try:
            uri = parse_rendezvous(url)
            address = as_http(uri)
        except (ValueError, BadUrl) as error:
            raise ConnectFailed(f"cannot connect to the relay: {error}") from None
        try:
            conversation, _ = await self._dialer.open(address, self._websocket_proxies, tunnels=True)
            try:
                return Upgraded(conversation, await _upgrade(conversation, uri, address))
            except BaseException:
                await conversation.close()
                raise
        except DialFailed as error:
            raise ConnectFailed(f"cannot connect to the relay: {error}") from error
        except OSError as error:
            raise ConnectFailed(f"cannot connect to the relay: {_os_text(error)}") from error


async def _upgrade(conversation: Conversation, uri: WebSocketURI, address: Url) -> bytes:
    """Send the upgrade and take the answer; return what came behind it.

    Raises `DialFailed`, `_UpgradeRefused`, OSError.
    """
    key = client_upgrade.new_key()
    headers = {REQUEST_ID: new_request_id()}
    conversation.send(
        client_upgrade.request(address.authority, uri.resource_name, key, headers, uri.user_info)
    )
    received = b""
    while client_upgrade.HEAD_END not in received:
        data = await conversation.receive()
        received += data
        if not data or len(received) > _MAX_HEAD_BYTES:
            raise DialFailed(f"{_PEER} did not answer the upgrade in HTTP")
    head, _, early = received.partition(client_upgrade.HEAD_END)
    status, reason = upgrade_status(head)
    if not status:
        raise DialFailed(f"{_PEER} did not answer the upgrade in HTTP")
    if status != _SWITCHING:
        raise _UpgradeRefused(status, reason)
    if not client_upgrade.is_usual(head, key):
        raise DialFailed(f"{_PEER} answered the upgrade wrongly")
    return early


def _os_text(error: OSError) -> str:
    """Return what the system says, without asyncio's own words, which name addresses."""
    return os_error_text(error.errno) if error.errno and type(error).__module__ == "builtins" else str(error)
