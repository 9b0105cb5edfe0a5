from __future__ import annotations

from execserver.wire.accepting import accept_value


def test_accept_value_is_the_one_of_the_rfc() -> None:
    assert accept_value("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
