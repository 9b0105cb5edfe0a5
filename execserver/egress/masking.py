"""The credentials of one process: what it sees in their place, and which request gets the real ones.

A stand-in comes from a secret of the server and from the value: so it is the same in each process of a
server, a file that one command wrote serves the next one, and nobody can tell the value from it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import string
import struct

from execserver.egress.credential_headers import Credential, replaced
from execserver.egress.providers import Provider, Unmaskable, builtin
from execserver.egress.value_patterns import BadPattern, Effort

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from execserver.egress.providers import Destination
    from execserver.egress.value_patterns import Draw

    # The variable of a credential, its value and its stand-in, and the value of the variable that names its
    # destination.
    Found = tuple[str, bytes, bytes, bytes]

ACTIVE = b"CODEX_NETWORK_PROXY_CREDENTIAL_BROKER_ACTIVE"
BROKERED = b"CODEX_NETWORK_PROXY_BROKERED_CREDENTIALS"
UNMASKED = b"EXECSERVER_UNMASKED_CREDENTIALS"
# A shorter value is looked for only as a whole: it may be a word of anything.
EMBEDDED_BYTES = 16
_MARK = "masked"
_LETTERS = string.ascii_letters + string.digits
_TRIES = 16
_NUMBERS = struct.Struct(">64Q")
_DRAW_STEPS = 5  # of the effort, for each character that is drawn
# Some servers take what these name for the path of the request.
_OTHER_TARGETS = frozenset((b"x-original-url", b"x-rewrite-url"))
# What a header can carry as it is.
_VALUE = re.compile(rb"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


class Masking:
    """Finds credentials in environments, and puts the real ones into requests.

    `unmasked` has what stays as it is, and why: by the name of a variable or of a provider.
    """

    def __init__(
        self, seed: bytes, providers: Iterable[Provider] = (), unmasked: Mapping[str, str] | None = None
    ) -> None:
        """`providers` come besides the built-in ones; `seed` is the server's secret."""
        self.credentials: list[Credential] = []
        self.unmasked = dict(unmasked or {})
        self._seed = seed
        self._effort = Effort()
        self._found: list[Found] = []
        own = builtin()
        taken = {name for provider in own for name in provider.variables}
        self._providers = list(own)
        for provider in providers:
            if taken.intersection(provider.variables):
                self.unmasked[provider.name] = "it has a variable of another provider"
            else:
                taken.update(provider.variables)
                self._providers.append(provider)

    def masked(self, env: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Return the variables of a process with stand-ins for its credentials, and those that say so.

        Raises TooMuch where finding and making them would hold up others: real values are no way out.
        """
        for provider in self._providers:
            for name in provider.variables:
                if value := env.get(name.encode()):
                    self._find(provider, name, value, env)
        variables = dict(zip(env, self.all_hidden(env.values()), strict=True))
        for credential in self.credentials:
            variable = credential.name.encode()
            if env.get(variable) == credential.real:
                variables[variable] = credential.stand_in
        return variables | self._telling()

    def hidden(self, data: bytes) -> bytes:
        """Return bytes with stand-ins for the credentials that are in them."""
        return self._whole().get(data) or self._replaced(data)

    def all_hidden(self, strings: Iterable[bytes]) -> list[bytes]:
        """Do as `hidden` with each of some strings, in one go: there may be thousands."""
        strings = list(strings)
        pieces = self._replaced(b"\0".join(strings)).split(b"\0")
        if len(pieces) != len(strings):  # none, or one has a NUL itself, with which nothing can be started
            return [self.hidden(string) for string in strings]
        whole = self._whole()
        return [whole.get(string) or piece for string, piece in zip(strings, pieces, strict=True)]

    def _whole(self) -> dict[bytes, bytes]:
        return {one.real: one.stand_in for one in reversed(self.credentials)}

    def _replaced(self, data: bytes) -> bytes:
        for credential in sorted(self.credentials, key=lambda one: -len(one.real)):
            if len(credential.real) >= EMBEDDED_BYTES:
                data = data.replace(credential.real, credential.stand_in)
        return data

    def found(self) -> list[Found]:
        """Return what `find_again` takes: each credential with its own destination."""
        return list(self._found)

    def find_again(self, found: Iterable[Found]) -> None:
        """Take over what another masking with these providers has found: its process has the stand-ins.

        Raises Unmaskable.
        """
        for name, value, stand_in, named in found:
            for provider in self._providers:
                if name in provider.variables:
                    env = {} if provider.from_env is None else {provider.from_env.encode(): named}
                    self._keep(provider, (name, value, stand_in, named), provider.destinations(env))

    def concerns(self, host: str, port: int) -> bool:
        """Return whether any credential may be sent there."""
        return any(credential.is_at(host, port) for credential in self.credentials)

    def fields(
        self, fields: list[tuple[bytes, bytes]], host: str, port: int, target: str
    ) -> list[tuple[bytes, bytes]]:
        """Return the fields of a request over TLS with the credentials that may go there."""
        able = [credential for credential in self.credentials if credential.covers(host, port, target)]
        if any(name.lower() in _OTHER_TARGETS for name, _ in fields):
            return fields
        return replaced(fields, able) if able else fields

    def _find(self, provider: Provider, name: str, value: bytes, env: Mapping[bytes, bytes]) -> None:
        if any((one.name, one.real) == (name, value) for one in self.credentials) or self._is_stand_in(value):
            return
        try:
            destinations = provider.destinations(env)
            stand_in = self._stand_in(provider, value)
        except (Unmaskable, BadPattern) as error:
            self.unmasked[name] = str(error)
            return
        named = env.get((provider.from_env or "").encode(), b"")
        self._keep(provider, (name, value, stand_in, named), destinations)

    def _keep(self, provider: Provider, found: Found, destinations: Sequence[Destination]) -> None:
        name, value, stand_in, _ = found
        self.credentials.append(Credential(name, value, stand_in, provider, destinations))
        self._found.append(found)

    def _is_stand_in(self, value: bytes) -> bool:
        return any(one.stand_in == value for one in self.credentials)

    def _stand_in(self, provider: Provider, value: bytes) -> bytes:
        if not _VALUE.fullmatch(value):
            raise Unmaskable("its value does not fit into a header")
        text = value.decode("ascii")
        pattern = next((one for one in provider.patterns if one.matches(text, self._effort)), None)
        if provider.shape is None and pattern is None:
            raise Unmaskable("its value matches no pattern of the provider")
        for attempt in range(_TRIES):
            what = b"%d\0%b\0%b" % (attempt, provider.name.encode(), value)
            draw = _drawing(self._seed, what, self._effort)
            made = _shaped(provider, text, draw) if pattern is None else pattern.sample(draw)
            if made != text and _VALUE.fullmatch(made.encode("utf-8", "replace")):
                return made.encode("ascii", "replace")
        raise Unmaskable("no other value matches the pattern that a header could carry")

    def _telling(self) -> dict[bytes, bytes]:
        import json  # late: few processes have masking

        pairs = [(credential.name, credential.stand_in.decode("ascii")) for credential in self.credentials]
        listed = sorted([*pairs, *((f"@alias:{name}", stand_in) for name, stand_in in pairs)])
        told = {ACTIVE: b"1", BROKERED: _json(json.dumps, listed)}
        if self.unmasked:
            told[UNMASKED] = _json(json.dumps, sorted(self.unmasked.items()))
        return told


def _json(dumps: object, pairs: list[tuple[str, str]]) -> bytes:
    assert callable(dumps)
    return str(dumps(pairs, separators=(",", ":"))).encode()


def _shaped(provider: Provider, value: str, draw: Draw) -> str:
    assert provider.shape is not None
    prefixes, least = provider.shape
    prefix = next((one for one in prefixes if value.startswith(one)), prefixes[-1]) + _MARK
    length = max(len(value), least, len(prefix) + least // 2)
    return prefix + "".join([_LETTERS[draw(len(_LETTERS))] for _ in range(length - len(prefix))])


def _drawing(seed: bytes, what: bytes, effort: Effort) -> Draw:
    """Return a source of numbers that a seed and a text decide; who lacks the seed can foretell none.

    Drawing raises TooMuch once nothing is left of the effort.
    """
    key = hmac.new(seed, what, hashlib.sha256).digest()
    pool: list[int] = []
    block = 0

    def draw(below: int) -> int:
        nonlocal block
        effort.spend(_DRAW_STEPS)
        if not pool:
            block += 1
            pool.extend(_NUMBERS.unpack(hashlib.shake_256(key + block.to_bytes(8)).digest(_NUMBERS.size)))
        return pool.pop() % below

    return draw
