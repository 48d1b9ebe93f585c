"""Opaque tokens name their tenant."""

import pytest

from tenants.errors import Unauthenticated
from tenants.opaque_tokens import hash_token, tenant_part
from tenants.tickets import BadTicket


@pytest.mark.parametrize("token", ["tkt_demo_AbC", "tkt_demo_a_b_c", "tkt_demo_"])
def test_the_tenant_is_between_the_first_two_underscores(token: str) -> None:
    assert tenant_part(token, "tkt_", BadTicket) == "demo"


@pytest.mark.parametrize("token", ["", "tkt_", "tkt_demo", "rt_demo_x", "tkt_Demo_x", "tkt_'; --_x", "tkt__x_y"])
def test_whatever_is_no_such_token_is_refused_with_the_callers_error(token: str) -> None:
    for wrong in (BadTicket, Unauthenticated):
        with pytest.raises(wrong) as refused:
            tenant_part(token, "tkt_", wrong)
        assert refused.type is wrong


def test_a_stored_hash_tells_tokens_apart_and_stays_the_same() -> None:
    """Stored hashes must match in every later release."""
    assert hash_token("tkt_demo_x") == "83842b24c6c360c12a8e726915a99e4c012da50f4633b6d728e04fbcaba5b69c"
    assert hash_token("tkt_demo_x") != hash_token("tkt_demo_y")
