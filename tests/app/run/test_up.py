"""What `plaudit up` refuses before it starts anything. (What it starts: tests/faults/test_up.py.)"""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.run import up
from app.run.ports import reserve_port
from app.run.supervisor import Printer, UpError
from app.settings import SettingsError
from tests.service import ROOT


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def start(data_dir: Path, port: int) -> None:
    up.run(data_dir, demo=False, traffic=False, port=port, workers=0, as_json=True)


def test_a_taken_port_leaves_no_data_folder(taken_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UpError, match=f"Port {taken_port} is taken: choose another with --port N .make up ARGS="):
        start(tmp_path / "data", taken_port)
    monkeypatch.setenv("PLAUDIT_LIVE_PORT", str(taken_port))
    with pytest.raises(UpError, match=f"Port {taken_port} is taken: choose another with PLAUDIT_LIVE_PORT"):
        start(tmp_path / "data", reserve_port())
    assert not (tmp_path / "data").exists()


def test_the_last_port_leaves_none_for_the_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLAUDIT_LIVE_PORT", raising=False)
    with pytest.raises(UpError, match="No free port for the sockets: choose one with PLAUDIT_LIVE_PORT"):
        start(tmp_path / "data", 65535)


def test_a_wrong_setting_leaves_no_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAUDIT_WEB_THREADS", "many")
    with pytest.raises(SettingsError, match="PLAUDIT_WEB_THREADS"):
        start(tmp_path / "data", reserve_port())
    assert not (tmp_path / "data").exists()


def test_the_servers_start_before_any_large_library_is_loaded() -> None:
    """Loading takes about a second, in which the servers start."""
    code = "import sys, app.cli, app.run.up; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"alembic", "flask", "psycopg", "redis", "sqlalchemy"} & {*done.stdout.split()}


@pytest.mark.parametrize(
    ("url", "listens_on", "lines"),
    [
        ("https://plaudit.example", "127.0.0.1:7801", ["  listens on 127.0.0.1:7801, sockets 127.0.0.1:7802"]),
        ("http://127.0.0.1:7801", "127.0.0.1:7801", []),
    ],
)
def test_behind_a_proxy_it_says_where_it_listens(url: str, listens_on: str, lines: list[str], tmp_path: Path) -> None:
    ready = {"ready": True, "url": url, "live_url": url, "listens_on": listens_on, "live_listens_on": "127.0.0.1:7802"}
    with (tmp_path / "said").open("w") as stream:
        out = Printer(stream, colours=False)
        up._print_ready(ready, out, as_json=False)
        out.close()
    first, *others = (tmp_path / "said").read_text().splitlines()
    assert first.startswith(f"ready {url}")
    assert others == lines
