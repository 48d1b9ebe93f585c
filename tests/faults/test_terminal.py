"""What a person sees who starts `plaudit up --demo` in a terminal."""

import contextlib
import fcntl
import os
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import requests

from app.run.ports import reserve_port
from tests.conftest import reachable_folder
from tests.service import ONE_WORKER, PLAUDIT, ROOT, copy_prepared, eventually, own_servers_env

ROWS, COLUMNS = 40, 160
SHOWN = ["ready", "tenant", "client_id", "client_secret", "admin_username", "admin_password"]
VIEWS = re.compile(r'http_requests_total\{method="POST",route="/api/v1/pages/<external_id>/views",status="202"\} (\d+)')


class Screen:
    """The lines that came to a terminal, without their colours."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._said = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def lines(self) -> list[str]:
        return re.sub(r"\x1b\[[0-9;]*m", "", self._said.decode(errors="replace")).splitlines()

    def close(self) -> None:
        """When the program has ended."""
        self._reader.join(10)
        os.close(self._terminal)

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the last process that had the terminal has ended
            while data := os.read(self._terminal, 65536):
                self._said += data


@contextlib.contextmanager
def demo_on_a_terminal(data_dir: Path, port: int) -> Iterator[Screen]:
    ours, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    env = own_servers_env() | {"PLAUDIT_DEMO_HISTORY_DAYS": "1"}
    command = [*PLAUDIT, "up", "--demo", "--data-dir", str(data_dir), "--port", str(port), *ONE_WORKER]
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, cwd=ROOT, env=env, start_new_session=True)
    os.close(its)
    screen = Screen(ours)
    try:
        yield screen
    finally:
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(30) == 0, screen.lines()
        finally:
            process.kill()
            screen.close()


def views_sent(url: str) -> int:
    """Single views that were answered: the demo's history comes in batches, and nobody else is here."""
    found = VIEWS.search(requests.get(f"{url}/metrics", timeout=10).text)
    return int(found[1]) if found else 0


def test_the_last_lines_are_the_address_and_the_login_while_the_demo_has_traffic() -> None:
    port = reserve_port()
    url = f"http://127.0.0.1:{port}"
    with reachable_folder() as folder, demo_on_a_terminal(copy_prepared(folder / "data"), port) as screen:
        eventually(lambda: "admin_password" in "".join(screen.lines()[-1:]), within_s=240)
        assert (folder / "data" / "demo-seeded").exists(), "the demo is prepared before it says that it is ready"
        ready = screen.lines()[-len(SHOWN) :]
        assert [line.split()[0] for line in ready] == SHOWN
        assert ready[0].startswith(f"ready {url} ")
        assert "demo     | creating 288 pages" in "\n".join(screen.lines()), "what takes long is announced"
        eventually(lambda: views_sent(url) >= 8, within_s=120)
        assert screen.lines()[-len(SHOWN) :] == ready
        assert requests.get(f"{url}/nothing-here", timeout=10).status_code == 404
        eventually(lambda: "GET '/nothing-here' 404" in screen.lines()[-1], within_s=60)
