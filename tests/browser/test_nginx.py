"""The nginx file of docs/operating.md, with Debian's nginx: both processes under one origin."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import requests
import websocket
from playwright.sync_api import Browser, expect

from app.run.ports import reserve_port
from tests.conftest import reachable_folder
from tests.live import Socket, events
from tests.secrets_seen import LOG_FOLDER
from tests.servers.proxy import Proxy
from tests.service import Service, running_service


@dataclass
class Joined:
    service: Service
    url: str
    headers: dict[str, str]

    def ticket(self) -> dict[str, str]:
        answer = requests.post(f"{self.url}/api/v1/live/tickets", headers=self.headers, timeout=10)
        issued: dict[str, str] = answer.json()
        return issued

    def connect(self, origin: str) -> Socket:
        address = self.url.replace("http", "ws") + f"/ws/leaderboards?ticket={self.ticket()['ticket']}"
        return Socket(websocket.create_connection(address, origin=origin, timeout=5))


@pytest.fixture(scope="module")
def joined() -> Iterator[Joined]:
    own, live = reserve_port(), reserve_port()
    with reachable_folder() as folder:
        proxy = Proxy(folder / "nginx")
        proxy.nodes = [(own, live)]
        url = proxy.url
        env = {"PLAUDIT_PUBLIC_URL": url, "PLAUDIT_PROXY_HOPS": "1"}
        options = ("--demo", "--no-traffic", "--port", str(own))
        with running_service(folder / "data", *options, env=env | {"PLAUDIT_LIVE_PORT": str(live)}) as service:
            service.url = f"http://127.0.0.1:{own}"
            with proxy:
                yield Joined(service, url, {"Authorization": f"Bearer {token(service, url)}"})


def token(service: Service, url: str) -> str:
    auth = (service.ready["client_id"], service.ready["client_secret"])
    answer = requests.post(f"{url}/oauth/token", data={"grant_type": "client_credentials"}, auth=auth, timeout=10)
    return str(answer.json()["access_token"])


def like(joined: Joined, user: str) -> None:
    body = {"space": "s", "title": "t", "url": "/n"}
    requests.put(f"{joined.url}/api/v1/pages/n", json=body, headers=joined.headers, timeout=10)
    requests.put(f"{joined.url}/api/v1/pages/n/likes/{user}", headers=joined.headers, timeout=10)


def test_sockets_and_streams_are_on_the_same_origin(joined: Joined) -> None:
    assert joined.ticket()["live_url"] == joined.url
    socket = joined.connect(joined.url)
    socket.send(op="subscribe", scope="tenant", window="7d", metric="likes")
    socket.read_until("subscribed")
    address = f"{joined.url}/api/v1/live/events?topic=tenant:7d:likes&ticket={joined.ticket()['ticket']}"
    with requests.get(address, stream=True, timeout=10) as answer:
        said = events(answer)
        assert next(said)[1]["type"] == "subscribed"
        like(joined, "ann")
        assert socket.read_until("invalidated")["topic"] == "tenant:7d:likes"
        assert next(said)[1]["type"] == "invalidated"
    socket.close()


def test_an_origin_is_foreign_here_too_and_no_ticket_is_in_nginxs_log(joined: Joined) -> None:
    with pytest.raises(websocket.WebSocketBadStatusException) as refused:
        joined.connect("https://evil.example")
    assert refused.value.status_code == 403
    logged = "".join(file.read_text() for file in LOG_FOLDER.glob("nginx-*"))
    assert "/ws/leaderboards" in logged
    assert "tkt_" not in logged
    assert "ticket" not in logged.replace("/live/tickets", "")


def test_the_dashboard_is_live_through_it(joined: Joined, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(f"{joined.url}/dashboard")
    page.get_by_label("Tenant").fill("demo")
    page.get_by_label("Username").fill(joined.service.ready["admin_username"])
    page.get_by_label("Password").fill(joined.service.ready["admin_password"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator(".live")).to_have_text("Live")
    page.close()
