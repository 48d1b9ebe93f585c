"""The live process as gunicorn runs it: it stops cleanly."""

import time

from app.run.data_folder import Addresses
from app.settings import Settings
from tests.app.live.conftest import BOARD
from tests.live import Live
from tests.people import Caller


def test_a_process_that_goes_says_so(settings: Settings, addresses: Addresses, wiki: Caller) -> None:
    with Live(settings, addresses) as going:
        sockets = [going.follow(wiki, **BOARD) for _ in range(5)]
        for socket in sockets:
            socket.read_until("subscribed")
        going.process.terminate()
        assert [socket.close_code() for socket in sockets] == [1012] * 5
        began = time.monotonic()
        going.process.wait(10)
        assert time.monotonic() - began < 5
        assert "Traceback" not in going.log_text()
