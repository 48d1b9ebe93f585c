"""Who calls: from a token, a cookie or a key, and from which address."""

from dataclasses import replace

import pytest
from flask import Flask
from flask.testing import FlaskClient

from app.http.auth import caller_address, caller_network
from app.http.rights import public
from app.settings import Settings
from app.web import create_app


@pytest.mark.parametrize(
    ("hops", "forwarded", "seen"),
    [(0, "6.6.6.6", "127.0.0.1"), (1, "6.6.6.6, 7.7.7.7", "7.7.7.7"), (2, "6.6.6.6, 7.7.7.7", "6.6.6.6")],
)
def test_the_callers_address_is_taken_from_as_many_proxies_as_are_ours(
    settings: Settings, hops: int, forwarded: str, seen: str
) -> None:
    app = create_app(replace(settings, proxy_hops=hops))
    app.add_url_rule("/whoami", view_func=public(lambda: str(caller_address())), endpoint="whoami")
    assert app.test_client().get("/whoami", headers={"X-Forwarded-For": forwarded}).text == seen


@pytest.mark.parametrize(
    ("remote", "address", "network"),
    [
        ("10.1.2.3", "10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3", "10.1.2.3"),
        ("[::ffff:10.1.2.3]:443", "10.1.2.3", "10.1.2.3"),
        ("2001:DB8:1:2:3:4:5:6", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::1", "fe80::/64"),
        ("nonsense", "None", ""),
    ],
)
def test_an_ipv6_caller_is_its_64_and_a_mapped_one_is_ipv4(
    own_app: Flask, remote: str, address: str, network: str
) -> None:
    own_app.add_url_rule("/who", view_func=public(lambda: f"{caller_address()} {caller_network()}"), endpoint="who")
    assert own_app.test_client().get("/who", environ_base={"REMOTE_ADDR": remote}).text == f"{address} {network}"


def test_without_credentials_the_header_has_no_error(client: FlaskClient) -> None:
    for headers in ({}, {"Authorization": "Basic YTpi"}, {"Authorization": "Bearer"}):
        answer = client.get("/api/v1/me", headers=headers)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == 'Bearer realm="plaudit"'
