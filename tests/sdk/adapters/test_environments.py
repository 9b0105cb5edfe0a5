"""What commands of an agent inherit of the server's environment."""

from __future__ import annotations

import pytest

from execserver_adapters._environments import INHERITED, env_policy_of


@pytest.mark.parametrize("name", INHERITED)
def test_secrets_by_their_names_are_never_inherited(name: str) -> None:
    policy = env_policy_of(name)
    assert policy.inherit.value == name
    assert policy.ignore_default_excludes is False


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="core, all, none"):
        env_policy_of("everything")
