"""`make loadtest` on another instance: it asks, is bounded, judges by thresholds, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from loadtests import run
from loadtests.footprint import PREFIX, Footprint
from loadtests.instance import Instance
from loadtests.lag import Lags
from loadtests.run import Figures
from tests.service import ROOT, Service, eventually

pytestmark = pytest.mark.long

QUICK = ("--yes", "--users", "6", "--seconds", "2")


@pytest.fixture
def instance(demo_service: Service) -> Instance:
    instance = Instance(demo_service.url, demo_service.ready["client_id"], demo_service.ready["client_secret"])
    instance.sign_in()
    return instance


def start(instance: Instance, *arguments: str, **env: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "loadtests.run", "--host", instance.host, *arguments]
    own = {"CLIENT_ID": instance.client_id, "CLIENT_SECRET": instance.client_secret}
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | own | env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left(instance: Instance) -> dict[str, Any]:
    """What a run creates or changes, as it is now."""
    pages = [
        page["external_id"]
        for space in (*range(5), "lag")
        for page in instance.call("GET", f"/api/v1/pages?space={PREFIX}-{space}")["items"]
    ]
    actions = [action["type"] for action in instance.call("GET", "/api/v1/actions/catalog")["items"]]
    return {
        "settings": instance.call("GET", "/api/v1/settings"),
        "pages": pages,
        "actions": [name for name in actions if name.startswith(PREFIX)],
        "users": instance.call("GET", f"/api/v1/users?q={PREFIX}")["items"],
    }


def test_a_run_is_judged_by_its_thresholds_and_leaves_nothing_behind(instance: Instance) -> None:
    before = left(instance)
    output, errors = start(instance, *QUICK, "--max-p99-ms", "0.01", "--max-lag-ms", "30000").communicate(timeout=120)
    assert "FAILED: p99 of" in output, output + errors
    assert output.count("FAILED") == 1, output + errors
    assert "Board lag: p50" in output
    assert "integrity.points_per_hour is 1000000000 instead of" in output
    assert "score_updates_per_minute" not in output
    assert "Requests: 0," not in output
    assert left(instance) == before
    assert before["pages"] == before["actions"] == before["users"] == []


def test_ctrl_c_leaves_nothing_behind_either(instance: Instance) -> None:
    before = left(instance)
    running = start(instance, "--yes", "--users", "4", "--seconds", "60")
    eventually(lambda: left(instance)["users"])
    assert left(instance)["settings"] != before["settings"]
    running.send_signal(signal.SIGINT)
    output, errors = running.communicate(timeout=120)
    assert running.returncode == 128 + signal.SIGINT, output + errors
    assert "Traceback" not in errors
    assert left(instance) == before


@pytest.mark.parametrize(
    ("arguments", "env", "said"),
    [
        ((), {"CLIENT_SECRET": ""}, "set CLIENT_ID and CLIENT_SECRET beside HOST"),
        ((), {"CLIENT_SECRET": "sk_wrong"}, "does not know this CLIENT_ID with this CLIENT_SECRET"),
        (("--seconds", "301"), {}, "--seconds must be from 1 to 300, not 301"),
        (("--host", "http://plaudit.example"), {}, "HOST must start with https://"),
        (("--host", "plaudit.example"), {}, "HOST must be an origin such as"),
        (("--host", "http://127.0.0.1:1"), {}, "http://127.0.0.1:1 cannot be reached (ConnectionError)"),
        ((), {}, "nobody can be asked here: add --yes"),
    ],
)
def test_what_it_cannot_do_is_said_in_one_line_and_nothing_is_changed(
    instance: Instance,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    env: dict[str, str],
    said: str,
) -> None:
    for name, value in {"CLIENT_ID": instance.client_id, "CLIENT_SECRET": instance.client_secret, **env}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Footprint, "create", lambda _: pytest.fail("something was changed"))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        run.main(["--host", instance.host, *arguments])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_whoever_is_asked_may_decline(
    instance: Instance, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: "")
    monkeypatch.setattr(Footprint, "create", lambda _: pytest.fail("something was changed"))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setenv("CLIENT_ID", instance.client_id)
    monkeypatch.setenv("CLIENT_SECRET", instance.client_secret)
    with pytest.raises(SystemExit):
        run.main(["--host", instance.host])
    assert "loadtest: nothing was changed" in capsys.readouterr().err


def test_make_passes_the_instance_on() -> None:
    make = ["make", "-n", "loadtest", "HOST=https://plaudit.example", "CLIENT_ID=a", "CLIENT_SECRET=b"]
    assert "loadtests.run --host 'https://plaudit.example'" in subprocess.check_output(make, cwd=ROOT, text=True)
    env = {**os.environ, "HOST": "the-name-of-this-machine"}  # some shells export it
    assert "--host" not in subprocess.check_output(make[:3], cwd=ROOT, env=env, text=True)


@pytest.mark.parametrize(
    ("figures", "lags", "status"),
    [
        (Figures(1000, 10, 1000.0), [5000.0], 0),
        (Figures(1000, 11, 10.0), [10.0], 1),
        (Figures(1000, 0, 1001.0), [10.0], 1),
        (Figures(1000, 0, 10.0), [10.0, 5001.0], 1),
        (Figures(1000, 0, 10.0), [], 1),
        (Figures(0, 0, 0.0), [10.0], 1),
    ],
)
def test_the_default_thresholds(figures: Figures, lags: list[float], status: int) -> None:
    options = run._parser().parse_args([])
    assert run._judge(options, figures, Lags(lags), **run.DEFAULTS_ELSEWHERE) == status
