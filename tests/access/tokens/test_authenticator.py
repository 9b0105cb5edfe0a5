"""Who gets in with a token, and who does not."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from execserver.access.bearer import MISSING, UNREADABLE
from execserver.access.identity import Grant, Identity, NotAdmitted
from execserver.access.tokens import authenticator, store
from execserver.access.tokens.authenticator import EXPIRED, INVALID, UNAVAILABLE
from execserver.access.tokens.caveats import caveats
from execserver.access.tokens.chain import MAX_TOKEN_BYTES, Token, minted, narrowed, parsed
from execserver.runtime_paths import TOKEN_STORE_FILE

NOW = 1_000_000.0


class Desk:
    """A list of tokens, and the server's side of it."""

    def __init__(self, folder: bytes) -> None:
        self.folder = folder
        self.first = store.issue(folder, (), NOW)
        self.door = authenticator.TokenAuthenticator(folder)

    def issue(self, *given: str) -> Token:
        return store.issue(self.folder, given, NOW)

    def ask(self, token: Token | str, now: float = NOW) -> Identity | str:
        """Return the identity of the holder, or the text of the refusal."""
        text = token if isinstance(token, str) else token.text
        return self.ask_with(b"Bearer " + text.encode(), now)

    def ask_with(self, header: bytes | None, now: float = NOW) -> Identity | str:
        try:
            found = self.door.identify(header, now)
            return Identity(found.way, found.name, found.grant)
        except NotAdmitted as refused:
            return refused.text


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(os.fsencode(tmp_path / "tokens"))


def test_a_holder_gets_what_the_token_allows(desk: Desk) -> None:
    assert desk.ask(desk.first) == Identity("token", desk.first.id, Grant())
    token = desk.issue("l-ci", *caveats(roots=[b"/srv"]))
    assert desk.ask(token) == Identity("token", f"{token.id} ci", Grant(roots=("/srv",)))


def test_a_label_is_the_one_that_was_issued_as_long_as_the_list_can_be_read(desk: Desk) -> None:
    issued, plain = desk.issue("l-ci"), desk.issue()
    found = [desk.door.identify(b"Bearer " + token.text.encode(), NOW) for token in (issued, plain)]
    for token in (issued, plain):
        changed = narrowed(token, caveats(label="root"))
        found.append(desk.door.identify(b"Bearer " + changed.text.encode(), NOW))
    assert [holder.label for holder in found] == ["ci", "", "ci", ""]
    os.chmod(desk.folder + b"/" + TOKEN_STORE_FILE, 0o644)
    assert [holder.label for holder in found] == [None] * 4


def test_a_narrowed_token_gets_less_and_keeps_its_name(desk: Desk) -> None:
    token = desk.issue("l-ci", *caveats(roots=[b"/srv"]))
    less = narrowed(token, ["l-bot", "r", "n", *caveats(roots=[b"/srv/a", b"/etc"])])
    assert desk.ask(less) == Identity("token", f"{token.id} ci/bot", Grant(("/srv/a",), True, False))


def test_nobody_widens_by_cutting_reordering_or_adding(desk: Desk) -> None:
    token = desk.issue("r", "n", *caveats(roots=[b"/srv"]), "u-2000000")
    for at in range(len(token.caveats)):
        assert desk.ask(token._replace(caveats=token.caveats[:at])) == INVALID
        assert desk.ask(token._replace(caveats=token.caveats[at + 1 :])) == INVALID
        assert desk.ask(token._replace(caveats=(*token.caveats[:at], *token.caveats[at + 1 :]))) == INVALID
    assert desk.ask(token._replace(caveats=token.caveats[::-1])) == INVALID
    assert desk.ask(token._replace(caveats=(*token.caveats, "u-9000000"))) == INVALID
    assert desk.ask(token._replace(id=desk.first.id)) == INVALID
    # What can be added takes away: later times and wider folders change nothing.
    more = narrowed(token, ["u-9000000", *caveats(roots=[b"/"])])
    assert desk.ask(more) == desk.ask(token)
    assert desk.ask(more, 2_000_000) == EXPIRED


def test_duplicate_caveats_change_nothing(desk: Desk) -> None:
    token = desk.issue("r", "u-2000000")
    assert desk.ask(narrowed(token, ["r", "r", "u-2000000"])) == desk.ask(token)


def test_a_revoked_token_is_refused_at_once_with_all_that_was_narrowed_from_it(desk: Desk) -> None:
    token = desk.issue("l-ci")
    less = narrowed(token, ["r"])
    assert isinstance(desk.ask(less), Identity)
    store.revoke(desk.folder, token.id, NOW)
    assert [desk.ask(token), desk.ask(less), desk.ask(narrowed(less, ["n"]))] == [INVALID] * 3
    assert isinstance(desk.ask(desk.first), Identity)


def test_who_is_in_already_is_known_no_longer(desk: Desk) -> None:
    token = desk.issue("u-1000010")
    holder = desk.door.identify(b"Bearer " + token.text.encode(), NOW)
    assert [holder.lapsed(now) for now in (NOW, 1_000_009.9, 1_000_010)] == [None, None, EXPIRED]
    store.revoke(desk.folder, token.id, NOW)
    assert holder.lapsed(NOW) == INVALID
    os.unlink(desk.folder + b"/" + TOKEN_STORE_FILE)
    assert holder.lapsed(NOW) == UNAVAILABLE


def test_holders_of_one_name_and_grant_are_one(desk: Desk) -> None:
    """A session is resumed by the identity that opened it: by this token again, and by no narrower one."""
    headers = [b"Bearer " + token.text.encode() for token in (desk.first, narrowed(desk.first, ["r"]))]
    one, again, less = (desk.door.identify(header, NOW) for header in (headers[0], *headers))
    assert one == again
    assert hash(one) == hash(again)
    assert one != less


def test_a_token_counts_until_its_second(desk: Desk) -> None:
    token = desk.issue("u-1000010")
    assert isinstance(desk.ask(token, 1_000_009.999), Identity)
    assert desk.ask(token, 1_000_010) == EXPIRED
    assert desk.ask(narrowed(desk.first, ["u-1000010"]), 1_000_010) == EXPIRED


def test_an_unknown_caveat_refuses_the_token(desk: Desk) -> None:
    """A newer program may have caveats that this one does not know; to ignore one would be to widen."""
    import base64
    import hmac

    link = base64.urlsafe_b64decode(desk.first.mac + "=")
    mac = base64.urlsafe_b64encode(hmac.digest(link, b"x-new", "sha256")).decode().rstrip("=")
    assert desk.ask(Token(desk.first.id, ("x-new",), mac)) == INVALID


def test_an_id_that_was_never_issued_is_refused_whatever_its_mac(desk: Desk) -> None:
    key = store.read(desk.folder).key
    assert desk.ask(minted(key, "f" * 16, [])) == INVALID
    assert desk.ask(minted(b"o" * 32, desk.first.id, [])) == INVALID


def test_a_token_of_another_list_is_refused(desk: Desk, tmp_path: Path) -> None:
    assert desk.ask(store.issue(os.fsencode(tmp_path / "other"), (), NOW)) == INVALID


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (None, MISSING),
        (b"", UNREADABLE),
        (b"Bearer", UNREADABLE),
        (b"Bearer ", UNREADABLE),
        (b"Basic eHN0MQ==", UNREADABLE),
        (b"Bearer a b", INVALID),
        (b"Bearer \xff", UNREADABLE),
        (b"Bearer a\n", UNREADABLE),
        (b"Bearer x", INVALID),
        (b"Bearer " + b"a" * 100_000, INVALID),
        (b"Bearer " + b"xst1." * 2000, INVALID),
    ],
)
def test_what_is_no_token_is_refused(desk: Desk, header: bytes | None, text: str) -> None:
    assert desk.ask_with(header) == text


def test_scheme_and_blanks_are_read_as_http_has_them(desk: Desk) -> None:
    token = desk.first.text.encode()
    assert isinstance(desk.ask_with(b"bEARER   " + token + b" "), Identity)


@settings(max_examples=300)
@given(st.data())
def test_no_mutation_gets_in(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    global _desk
    _desk = _desk or Desk(os.fsencode(tmp_path_factory.mktemp("mutated") / "tokens"))
    text = narrowed(_desk.first, ["r", "u-2000000"]).text
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    inserted = data.draw(st.text("xst1.ru-0123456789abcdefABC_", max_size=8))
    changed = text[:start] + inserted + text[end:]
    assert changed == text or isinstance(_desk.ask(changed), str)


_desk: Desk | None = None


def test_while_the_list_cannot_be_read_nobody_gets_in(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    file = Path(os.fsdecode(desk.folder + b"/" + TOKEN_STORE_FILE))
    whole = file.read_bytes()
    for spoil in (file.unlink, lambda: file.write_text("{}"), lambda: file.chmod(0o644)):
        file.write_bytes(whole)
        file.chmod(0o600)
        assert isinstance(desk.ask(desk.first), Identity)
        spoil()
        with caplog.at_level(logging.ERROR):
            assert [desk.ask(desk.first), desk.ask(desk.first)] == [UNAVAILABLE] * 2
        assert len(caplog.records) == 1  # reported once
        caplog.clear()
    with pytest.raises(store.TokenStoreError):
        authenticator.TokenAuthenticator(desk.folder)


def test_a_name_says_which_token_it_is(desk: Desk) -> None:
    """A holder adds labels as it likes, and still has no name that another token could have."""
    one, other = desk.issue("l-ci"), desk.issue()
    names = [
        found.name for found in map(desk.ask, (one, narrowed(other, ["l-ci"]))) if isinstance(found, Identity)
    ]
    assert names == [f"{one.id} ci", f"{other.id} ci"]


def test_the_longest_token_is_read(desk: Desk) -> None:
    roots = caveats(roots=[b"/" + b"a" * 255 + b"/%d" % number for number in range(15)])
    token = desk.issue(*roots)
    assert len(token.text) < MAX_TOKEN_BYTES
    assert parsed(token.text) == token
    assert isinstance(desk.ask(token), Identity)
