"""The strength of a new password: what is refused, with which words, and what a score may cost."""

import secrets
from concurrent.futures import ThreadPoolExecutor

import pytest
from zxcvbn.matching import L33T_TABLE, RANKED_DICTIONARIES, relevant_l33t_subtable

from tenants import password_strength
from tenants.errors import Invalid
from tenants.password_strength import require_strong

ABOUT = ["ada_lovelace", "acme-wiki", "The Analytical Wiki", "countess.king@example.org", None]


def is_strong(password: str) -> bool:
    try:
        require_strong(password, ABOUT, field="password")
    except Invalid:
        return False
    return True


@pytest.mark.parametrize(
    "password",
    [
        "password123",
        "aaaaaaaaaa",
        "qwertyuiop",
        "1234567890",
        "P@ssw0rd2024",
        "ada_lovelace1",
        "ADA_LOVELACE9",
        "lovelace2024",
        "acme-wiki1",
        "analytical1",
        "countess.king7",
        "plaudit2024",
    ],
)
def test_what_everybody_tries_first_is_refused(password: str) -> None:
    assert not is_strong(password)


@pytest.mark.parametrize("password", ["correct horse battery", "dR7!x2Kq9#mV4pLz", "naïve Löwen singen"])
def test_uncommon_words_and_generated_passwords_are_accepted(password: str) -> None:
    assert is_strong(password)
    assert all(is_strong(secrets.token_urlsafe(12)) for _ in range(50))


def test_the_message_says_why_and_how() -> None:
    with pytest.raises(Invalid) as refused:
        require_strong("password123", [], field="new")
    assert list(refused.value.errors or {}) == ["new"]
    assert "common password" in refused.value.detail
    assert "several uncommon words" in refused.value.detail


def test_words_about_a_user_count_for_that_user_only_also_at_the_same_time() -> None:
    names = [f"{secrets.token_hex(6)}" for _ in range(40)]

    def refused(name: str) -> bool:
        try:
            require_strong(f"{name}1", [name], field="password")
        except Invalid:
            return True
        return False

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(refused, names))
    assert "user_inputs" not in RANKED_DICTIONARIES, "nothing about a user stays"
    require_strong(f"{names[0]}1", [names[1]], field="password")


def test_what_is_scored_is_bounded_by_what_it_costs() -> None:
    """The library tries each way of reading digits and signs as letters: up to seconds for the second of these."""
    for password in ("a" * 256, "4@8({[<36913!|70$5+%2" * 10, "p4ssw0rd!" * 20, "0123456789" * 20):
        part = password_strength._scored_part(password)
        look_alikes = {sign for signs in relevant_l33t_subtable(part, L33T_TABLE).values() for sign in signs}
        assert password.startswith(part)
        assert len(part) <= password_strength.MAX_SCORED_CHARS
        assert (
            len(look_alikes) <= password_strength.MAX_LOOK_ALIKES
            or len(part) <= password_strength.MAX_SCORED_CHARS_WITH_LOOK_ALIKES
        )
