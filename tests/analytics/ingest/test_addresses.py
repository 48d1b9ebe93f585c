"""Addresses that mean the same are the same, and others are not."""

import time

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from analytics.ingest import addresses
from analytics.ingest.addresses import MAX_KEY_BYTES, Address, candidates, key_of

HOME = "https://wiki.example/home"

SAME = [
    ("https://wiki.example/caf%C3%A9", "https://wiki.example/café"),
    ("https://wiki.example/a%20b", "https://wiki.example/a b"),
    ("https://wiki.example/%7eann/%61", "https://wiki.example/~ann/a"),
    ("https://wiki.example/%c3%a9", "https://wiki.example/%C3%A9"),
    (HOME, "HTTPS://Wiki.EXAMPLE/home"),
    ("https://bücher.example/", "https://xn--bcher-kva.example/"),
    ("https://BÜCHER.example", "https://b%C3%BCcher.example"),
    ("https://straße.example/", "https://xn--strae-oqa.example/"),
    ("https://wiki。example/home", HOME),
    (HOME, "https://wiki.example:443/home"),
    (HOME, "http://wiki.example:80/home"),
    ("http://wiki.example:08080/home", "https://wiki.example:8080/home"),
    ("https://[2001:DB8:0::1]/x", "https://[2001:db8::1]:443/x"),
    ("https://wiki.example", "https://wiki.example/"),
    ("https://wiki.example?a=1", "https://wiki.example/?a=1"),
    (HOME, "https://wiki.example/home/"),
    (HOME, "http://wiki.example/home"),
    (HOME, "https://www.wiki.example/home"),
    (HOME, "https://wiki.example./home"),
    (HOME, "https://ann:secret@wiki.example/home"),
    (HOME, " \thttps://wiki.example\\ho\nme "),
    (HOME, "https://wiki.example/a/../x/./../home"),
    (HOME, "https://wiki.example/../%2e%2E/home/."),
    (HOME, HOME + "?"),
    (HOME, HOME + "#top"),
    (HOME, HOME + "?utm_source=x&UTM_Campaign=y&fbclid=1&gclid=2&msclkid=3&ref=4&mc_cid=5&mc_eid=6"),
    (HOME + "?b=2&a=1", HOME + "?a=1&b=2"),
    (HOME + "?id=5", HOME + "?utm%5Fsource=x&id=5&&ref=z#comments"),
    (HOME + "#/inbox", "http://www.wiki.example/home/?utm_source=x#/inbox"),
    ("/home", "/home/?utm_source=x#top"),
    ("/caf%c3%a9?b=1&a=2", "/x/../café?a=2&b=1"),
]

DIFFERENT = [
    (HOME, "https://wiki.example/Home"),
    (HOME, "https://en.wiki.example/home"),
    (HOME, "https://wiki.example:8443/home"),
    (HOME, HOME + "?id=5"),
    (HOME + "?id=5", HOME + "?id=6"),
    (HOME + "?a=1&a=2", HOME + "?a=2&a=1"),  # a list, whose order may matter
    (HOME + "?a=b%26c", HOME + "?a=b&c"),
    (HOME, HOME + "#/inbox"),
    (HOME + "#/inbox", HOME + "#!inbox"),
    (HOME + "?reference=1", HOME),
    ("https://wiki.example/a%2Fb", "https://wiki.example/a/b"),
    ("https://wiki.example//a", "https://wiki.example/a"),
    ("https://www.example/", "https://example/"),  # a name of two parts, the first of which is www
    (HOME, "/home"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_addresses_that_mean_the_same_are_one(one: str, other: str) -> None:
    first, second = Address.parse(one), Address.parse(other)
    assert first is not None
    assert first == second
    assert key_of(one) == key_of(other) == first.text


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_addresses_that_differ_otherwise_are_two(one: str, other: str) -> None:
    assert None not in {Address.parse(one), Address.parse(other)}
    assert key_of(one) != key_of(other)


@pytest.mark.parametrize(
    "url",
    [
        *("", "home", "//wiki.example/home", "/\\wiki.example", "javascript:alert(1)", "mailto:a@b", "ftp://a/b"),
        *("https://", "https:///x", "https://@/", "https://a b/", "https://[::1", "https://[x]/", "https://a:99999/"),
        *(
            "https://a:b/",
            "https://a:" + "0" * 5000 + "99999/",
            "https://" + "ü" * 64,
            "https://a%2Fb/",
            "https://%ff/",
        ),
    ],
)
def test_what_no_browser_opens_is_no_address_and_stands_for_itself(url: str) -> None:
    assert Address.parse(url) is None
    assert candidates([url], []) == []
    assert key_of(url) == url or len(url) > MAX_KEY_BYTES


HOSTILE = st.one_of(
    st.text(),
    st.from_regex(r"https?://[^/]{0,20}(/[^#]{0,20}){0,3}(\?.{0,20})?(#.{0,10})?"),
    st.text(alphabet="/.%25eE2fF?#&=@:[]\\wu_~ ü℀ß。\u00ad0123456789abcdef").map("https://www.a".__add__),
    st.text(alphabet="/.%25eE2fF?#&=\\ ü").map("/".__add__),
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(HOSTILE)
@example("https://a/%%3441")
@example("/.//a")
@example("https://www.www.a.b./")
def test_an_address_is_its_own_normal_form(url: str) -> None:
    address = Address.parse(url)
    assert len(key_of(url).encode()) <= MAX_KEY_BYTES
    if address is None:
        return
    assert address.text.isascii()
    assert Address.parse(address.text if address.is_path else f"https://{address.text}") == address
    assert Address.parse(address.as_path().text) == address.as_path()
    assert address.without_query().without_query().text == address.without_query().text
    assert address.key in candidates([url], [])


def test_a_long_address_is_stored_by_its_beginning_and_hash() -> None:
    long = "/" + "é" * 1000
    assert key_of(long) == key_of(long + "/")
    assert key_of(long + "x") != key_of(long)
    assert key_of(long).startswith("/%C3%A9")
    assert len(key_of(long).encode()) <= MAX_KEY_BYTES


@pytest.mark.parametrize(
    "unit", ["%", "%41", "../", "/./", "a=1&", "utm_a&", "?", "#/", "@", ":", "[", "ü", ".www", "\\"]
)
@pytest.mark.parametrize("start", ["https://", "https://a/", "/", "https://a/?"])
def test_no_address_takes_more_than_linear_time(start: str, unit: str) -> None:
    began = time.process_time()
    key_of(start + unit * (40_000 // len(unit)))
    assert time.process_time() - began < 1.0


def test_a_browsers_address_is_looked_up_exactly_then_without_its_query_and_as_a_path_on_allowed_origins() -> None:
    url = "https://WWW.wiki.example/show/?id=5&utm_source=x"
    allowed = ["http://wiki.example", "https://other.example:8443"]
    found = ["wiki.example/show?id=5", "/show?id=5", "wiki.example/show", "/show"]
    assert candidates([url], allowed) == found
    assert candidates([url], ["https://wiki.example:8443"]) == found[::2], "another port is another origin"
    assert candidates([url], []) == found[::2]
    assert candidates(["/show?id=5"], []) == found[1::2], "a path is of the origin that sent it"
    assert candidates(["https://other.example:8443/a?x", "https://wiki.example/b"], allowed) == [
        *("other.example:8443/a?x", "/a?x", "wiki.example/b", "/b"),
        *("other.example:8443/a", "/a"),
    ], "each exactly, before any without its query"


def test_the_table_of_tracking_parameters_is_in_lower_case() -> None:
    assert {name.lower() for name in addresses.TRACKING} == addresses.TRACKING
