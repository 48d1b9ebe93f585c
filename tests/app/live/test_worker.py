"""The live process stops: every client is told, after a drain or at once."""

import signal

import pytest
import requests

from app.run.data_folder import Addresses
from app.settings import Settings
from tests.app.live.conftest import BOARD
from tests.live import Live
from tests.people import Caller
from tests.service import eventually

LONG = {"PLAUDIT_DRAIN_S": "300"}


@pytest.mark.parametrize(
    ("env", "how"),
    [({}, signal.SIGTERM), ({"PLAUDIT_DRAIN_S": "1"}, signal.SIGTERM), (LONG, signal.SIGINT)],
)
def test_a_process_that_goes_says_so(
    env: dict[str, str], how: signal.Signals, settings: Settings, addresses: Addresses, wiki: Caller
) -> None:
    with Live(settings, addresses, **env) as going:
        sockets = [going.follow(wiki, **BOARD) for _ in range(5)]
        for socket in sockets:
            socket.read_until("subscribed")
        going.process.send_signal(how)
        assert [socket.close_code(within_s=60) for socket in sockets] == [1012] * 5
        assert going.process.wait(60) == 0
        assert "Traceback" not in going.log_text()
        assert f"127.0.0.1:{going.port}" in going.log_text()


def test_a_draining_process_is_not_ready_and_still_opens_sockets(
    settings: Settings, addresses: Addresses, wiki: Caller
) -> None:
    with Live(settings, addresses, **LONG) as going:
        assert requests.get(f"{going.url}/health/ready", timeout=10).ok
        going.process.terminate()
        eventually(lambda: requests.get(f"{going.url}/health/ready", timeout=10).status_code == 503)
        ready = requests.get(f"{going.url}/health/ready", timeout=10)
        assert ready.json() == {"status": "unavailable", "checks": {"process": "is stopping"}}
        assert ready.headers["Connection"] == "close"
        socket = going.follow(wiki, **BOARD)
        socket.read_until("subscribed")
        going.process.send_signal(signal.SIGINT)
        assert socket.close_code(within_s=60) == 1012
        assert going.process.wait(60) == 0
