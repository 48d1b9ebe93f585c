"""`plaudit up`: starts, survives the death of any part, ends without a trace, and says what is wrong."""

import contextlib
import os
import random
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil
import pytest
import requests

from app.run.data_folder import Addresses, read_state
from app.run.ports import reserve_port
from app.settings import Settings
from tests.conftest import reachable_folder
from tests.secrets_seen import LOG_FOLDER
from tests.service import (
    ONE_WORKER,
    PLAUDIT,
    ROOT,
    Service,
    children_of,
    copy_prepared,
    eventually,
    own_servers_env,
    plaudit,
    running_service,
)
from tests.tenants.test_redis import refused_address


@pytest.fixture
def folder() -> Iterator[Path]:
    with reachable_folder() as path:
        yield path / "data"


def is_ready(service: Service) -> bool:
    return bool(service.get("/health/ready").json()["status"] == "ok")


def gone(processes: list[psutil.Process]) -> bool:
    return not [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def test_it_starts_again_on_the_same_data_after_a_stop_and_after_a_kill(folder: Path, demo_service: Service) -> None:
    with running_service(folder, "--demo", "--no-traffic", prepared=False) as service:
        first = service.ready
        assert first["tenant"] == "demo"
        login = {"tenant": "demo", "username": first["admin_username"], "password": first["admin_password"]}
        assert service.post("/api/v1/auth/login", json=login).status_code == 200
        assert service.ready["url"].startswith("http://127.0.0.1:")
        assert is_ready(service)
        assert is_ready(demo_service), "two run beside each other"
        assert service.get("/api/docs").status_code == 200
        made = plaudit("tenant", "create", "kept", "--name", "Kept", data_dir=folder)
        assert made.returncode == 0, made.stderr
        everything = service.everything()
        assert len(everything) > 8
        began = time.monotonic()
        assert service.stop(signal.SIGINT) == 0
        assert time.monotonic() - began < 30, "it waits nine seconds at most; slack for a busy machine"
        assert gone(everything)
    assert kill_while_it_starts(folder, sends_demo_history) == []
    with running_service(folder, "--demo", "--no-traffic") as third:
        assert is_ready(third)
        for name in ("client_id", "client_secret", "admin_username", "admin_password"):
            assert first[name] == third.ready[name], "the demo's credentials are shown again"
        listed = plaudit("tenant", "list", "--json", data_dir=folder)
        assert '"kept"' in listed.stdout
        assert '"demo"' in listed.stdout


def test_servers_that_the_operator_named_stay_the_operators(
    folder: Path, settings: Settings, addresses: Addresses
) -> None:
    """Commands do not find them in the data folder, and processes that answer requests have no owner's login."""
    if not addresses.service_database_url:
        pytest.skip("there is one login only")
    env = {
        "DATABASE_URL": addresses.database_url,
        "PLAUDIT_SERVICE_DATABASE_URL": addresses.service_database_url,
        "REDIS_URL": addresses.redis_url,
        "PLAUDIT_SECRET_KEY": settings.secret_key or "",  # that of the tests' own process, which is listed there
    }
    with running_service(folder, env=env, prepared=False) as service:
        assert is_ready(service)
        assert "addresses" not in (read_state(folder) or {})
        children = service.processes()
        assert not {"postgres", "valkey"} & children.keys()
        for name in ("web", "live"):
            for process in [children[name], *children[name].children(recursive=True)]:
                known = process.environ()
                assert known["PLAUDIT_SERVICE_DATABASE_URL"] == addresses.service_database_url
                assert addresses.database_url not in known.values(), f"{name} has the owner's login"


def test_every_child_that_dies_comes_back_and_the_rest_stays(folder: Path) -> None:
    with running_service(folder) as service:
        for name in ("web", "live", "worker", "cron", "valkey", "postgres"):
            before = eventually(lambda: with_names(service))
            os.kill(before[name].pid, signal.SIGKILL)

            def back(name: str = name, pid: int = before[name].pid) -> bool:
                now = service.processes()
                return name in now and now[name].pid != pid and is_ready(service)

            eventually(back, within_s=30)
            after = service.processes()
            assert {n: p.pid for n, p in before.items() if n != name} == {
                n: p.pid for n, p in after.items() if n != name
            }, f"the others were left alone when {name} died"


def with_names(service: Service) -> dict[str, psutil.Process] | None:
    """The processes, once each has its name: a fork has its parent's for a moment."""
    found = service.processes()
    return found if {"web", "live", "worker", "cron", "valkey", "postgres"} <= found.keys() else None


@pytest.mark.parametrize("command", ["web", "live"])
@pytest.mark.parametrize("loading_s", [0, 0.1])
def test_a_process_that_is_loading_dies_with_its_parent(
    command: str, loading_s: float, settings: Settings, addresses: Addresses
) -> None:
    """Killed with -9, the parent cannot stop it; left alone, it would answer with old settings beside its successor."""
    parent = start_process(command, settings, addresses)
    eventually(lambda: children_of(parent.pid), within_s=60, every_s=0.005)
    time.sleep(loading_s)
    assert left_by_killing(parent) == []


def test_a_process_that_takes_a_dead_ones_place_dies_with_its_parent(settings: Settings, addresses: Addresses) -> None:
    parent = start_process("web", settings, addresses)
    first = eventually(lambda: len(children_of(parent.pid)) == 2 and children_of(parent.pid), within_s=60)
    first[0].kill()
    eventually(lambda: set(children_of(parent.pid)) - set(first), within_s=60, every_s=0.005)
    assert left_by_killing(parent) == []


def start_process(command: str, settings: Settings, addresses: Addresses) -> psutil.Popen:
    own = {
        "DATABASE_URL": addresses.database_url,
        "PLAUDIT_SERVICE_DATABASE_URL": addresses.service_database_url,
        "REDIS_URL": addresses.redis_url,
        "PLAUDIT_SECRET_KEY": settings.secret_key or "",
        "PROMETHEUS_MULTIPROC_DIR": str(LOG_FOLDER),
    }
    with (LOG_FOLDER / "killed.log").open("ab") as log:
        return psutil.Popen(
            [*PLAUDIT, command, "--port", str(reserve_port())], stdout=log, stderr=log, cwd=ROOT, env=os.environ | own
        )


def left_by_killing(parent: psutil.Popen) -> list[psutil.Process]:
    """Kill it with -9 while its children stand still; those that are left five seconds after they go on."""
    parent.suspend()
    children = parent.children()
    for child in children:
        child.suspend()
    parent.kill()
    parent.wait()
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):  # it was killed with its parent, although it stood still
            child.resume()
    return left_of(children, after_s=5)


def left_of(processes: Iterable[psutil.Process], *, after_s: float) -> list[psutil.Process]:
    """Those that do not end within this time. They are killed then."""
    _, left = psutil.wait_procs(processes, timeout=after_s)
    left = [one for one in left if not gone([one])]
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return left


def test_killed_with_9_while_it_starts_it_leaves_no_process(folder: Path) -> None:
    def some_time(_up: int) -> bool:
        time.sleep(random.uniform(1, 4))
        return True

    assert kill_while_it_starts(folder, some_time) == []


def sends_demo_history(up: int) -> bool:
    """Whether the process that creates the demo's history and traffic, the last to be started, runs."""
    return any(child.name().startswith("plaudit-demo") for child in children_of(up))


def kill_while_it_starts(folder: Path, is_time: Callable[[int], bool]) -> list[psutil.Process]:
    """Start `plaudit up` and kill it with -9 when it is time to; those that are left."""
    mark = secrets.token_hex(8)
    with (LOG_FOLDER / "killed.log").open("ab") as log:
        up = subprocess.Popen(
            [*PLAUDIT, "up", "--demo", "--data-dir", str(folder), "--port", str(reserve_port())],
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env=own_servers_env() | {"PLAUDIT_TEST_MARK": mark},
        )
    try:
        eventually(lambda: is_time(up.pid), within_s=120)
        started = psutil.Process(up.pid).children(recursive=True)
    finally:
        up.kill()
        up.wait()
    return left_of({*started, *marked_with(mark)}, after_s=15)


def marked_with(mark: str) -> Iterator[psutil.Process]:
    """Every process that was given this environment, whoever its parent is by now."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("PLAUDIT_TEST_MARK") == mark:
                yield process


def test_output_that_nobody_reads_does_not_stop_the_service(folder: Path) -> None:
    """A full pipe must not stop the service."""
    port = reserve_port()
    command = [*PLAUDIT, "up", "--data-dir", str(copy_prepared(folder)), "--port", str(port), *ONE_WORKER]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=ROOT, env=own_servers_env() | {"LOG_FORMAT": "json"}
    )
    try:
        eventually(lambda: requests.get(f"http://127.0.0.1:{port}/health/ready", timeout=5).ok, within_s=60)
        with requests.Session() as session:
            for _ in range(600):  # each is logged with some 300 bytes: far more than fit into a pipe
                assert session.get(f"http://127.0.0.1:{port}/nothing-here", timeout=5).status_code == 404
    finally:
        process.terminate()
        assert process.wait(15) == 0


def assert_one_clear_line(done: "subprocess.CompletedProcess[str]", *parts: str) -> None:
    assert done.returncode == 1, done.stdout + done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for part in parts:
        assert part in done.stderr


def test_a_taken_port_is_reported_in_one_line(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert_one_clear_line(plaudit("up", "--port", port, data_dir=folder), port, "--port")


def test_a_folder_in_use_is_reported_in_one_line(demo_service: Service) -> None:
    said = plaudit("up", "--port", str(reserve_port()), data_dir=demo_service.data_dir)
    assert_one_clear_line(said, "running", "--data-dir")


def test_data_of_another_server_version_is_reported_in_one_line(folder: Path) -> None:
    (folder / "postgres-14").mkdir(parents=True)
    said = plaudit("up", "--port", str(reserve_port()), data_dir=folder)
    assert_one_clear_line(said, "PostgreSQL 14", "plaudit backup", "plaudit restore")


def test_an_unreachable_database_is_reported_in_one_line(folder: Path) -> None:
    env = {"DATABASE_URL": "postgresql://me:hunter2@127.0.0.1:1/db"}
    said = plaudit("up", "--port", str(reserve_port()), data_dir=folder, env=env)
    assert_one_clear_line(said, "cannot be reached", "DATABASE_URL")
    assert "hunter2" not in said.stderr


def test_a_redis_that_refuses_is_reported_in_one_line(folder: Path, addresses: Addresses) -> None:
    env = {"REDIS_URL": refused_address(addresses.redis_url, "database")}
    said = plaudit("up", "--port", str(reserve_port()), data_dir=copy_prepared(folder), env=env)
    assert (
        said.stderr.splitlines()[-1]
        == "plaudit: Redis refuses the login or the database (DB index is out of range): check REDIS_URL"
    )


def test_a_wrong_setting_is_reported_in_one_line(folder: Path) -> None:
    env = {"PLAUDIT_PROXY_HOPS": "many"}
    assert_one_clear_line(
        plaudit("up", "--port", str(reserve_port()), data_dir=folder, env=env), "PLAUDIT_PROXY_HOPS", "many"
    )


def test_an_unwritable_folder_is_reported_in_one_line(folder: Path) -> None:
    folder.parent.joinpath("file").write_text("")
    assert_one_clear_line(plaudit("tenant", "list", data_dir=folder.parent / "file" / "data"), "--data-dir")
