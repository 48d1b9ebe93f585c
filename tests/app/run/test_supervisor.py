"""The supervisor: shows its children's lines, restarts what dies, stops everything in order."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.run import probes, supervisor
from app.run.local_servers import Server
from app.run.supervisor import Printer, Supervisor, UpError
from tests.service import eventually
from tests.small_disk import small_disk

FOREVER = "while :; do sleep 0.05; done"


@contextlib.contextmanager
def supervised(out: Path) -> Iterator[Supervisor]:
    """A supervisor that prints to this file, and stops its children at the end."""
    with out.open("w") as stream:
        printer = Printer(stream, colours=False)
        processes = Supervisor(env={}, out=printer)
        try:
            yield processes
        finally:
            processes.stop_all()
            printer.close()


def shell(script: str, *, name: str = "child", noise: str = r"(?!)") -> Server:
    return Server(name, ["/bin/sh", "-c", script], (signal.SIGTERM, signal.SIGKILL), noise=noise)


def test_lines_are_shown_with_their_childs_name_and_without_noise(tmp_path: Path) -> None:
    with supervised(tmp_path / "out") as processes:
        child = processes.add_server(shell("echo one; echo starting up; echo; printf 'no newline'", noise="^starting"))
        assert processes.wait_for(lambda: child.restart_at is not None)
    assert (tmp_path / "out").read_text().splitlines() == [
        "child    | one",
        "child    | no newline",
        "child    | ended with status 0; restarting it in 0.05 s",
    ]


@pytest.mark.parametrize(
    ("death", "said"), [("exit 3", "ended with status 3"), ("kill -9 $$", "was killed by signal 9")]
)
def test_a_child_that_dies_is_started_again_after_a_growing_delay(death: str, said: str, tmp_path: Path) -> None:
    with supervised(tmp_path / "out") as processes:
        child = processes.add_server(shell(f"echo started; {death}"))
        assert processes.wait_for(lambda: child.restart_in_s > 0.1)
        assert not child.is_alive
    assert (tmp_path / "out").read_text().splitlines() == [
        "child    | started",
        f"child    | {said}; restarting it in 0.05 s",
        "child    | started",
        f"child    | {said}; restarting it in 0.1 s",
    ]


def test_a_server_that_does_not_answer_is_ended_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "EVERY_S", 0.2)
    monkeypatch.setattr(supervisor, "LOST_STOP_WITHIN_S", 0.2)
    with supervised(tmp_path / "out") as processes, socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(probes, "ANSWER_WITHIN_S", 0.2)
        question = probes.Question(silent.getsockname()[1], b"PING")
        hanging = replace(shell(f"trap '' TERM; touch {tmp_path}/up; {FOREVER}"), question=question)
        child = processes.add_server(hanging)
        assert processes.wait_for(lambda: child.restart_in_s > 0.05)
    said = (tmp_path / "out").read_text()
    assert "child    | does not answer; ending it, to start it again\nchild    | was killed by signal 9" in said


def test_our_own_processes_stop_before_the_servers_that_they_use(tmp_path: Path) -> None:
    order = tmp_path / "order"
    with supervised(tmp_path / "out") as processes:
        for name in ("server", "web"):
            script = f"trap 'echo {name} >> {order}; exit 0' TERM; touch {tmp_path}/{name}; {FOREVER}"
            server = shell(script, name=name)
            child = processes.add_server(server)
            child.server = server if name == "server" else None
            assert processes.wait_for((tmp_path / name).exists)
    assert order.read_text().split() == ["web", "server"]
    assert [child.is_alive for child in processes.children] == [False, False]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_only_sigterm_drains_those_that_can(how: signal.Signals, tmp_path: Path) -> None:
    said = tmp_path / "said"
    trap = f"trap 'echo drains >> {said}; exit 0' TERM; trap 'echo ends >> {said}; exit 0' INT"
    with supervised(tmp_path / "out") as processes, processes.signals():
        child = processes.add_server(shell(f"{trap}; touch {tmp_path}/up; {FOREVER}"))
        child.server, child.drain_s = None, 60.0
        assert processes.wait_for((tmp_path / "up").exists)
        os.kill(os.getpid(), how)
        processes.run()
    assert said.read_text().split() == ["drains" if how == signal.SIGTERM else "ends"]


def test_a_child_that_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "STOP_WITHIN_S", 0.1)
    with supervised(tmp_path / "out") as processes:
        child = processes.add_server(shell(f"trap '' TERM; touch {tmp_path}/up; {FOREVER}"))
        assert processes.wait_for((tmp_path / "up").exists)
    assert child.process is not None
    assert child.process.returncode == -signal.SIGKILL
    assert "did not stop in time" in (tmp_path / "out").read_text()


def test_a_signal_ends_the_waiting_and_the_handlers_of_before_are_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with supervised(tmp_path / "out") as processes, processes.signals():
        os.kill(os.getpid(), signal.SIGTERM)
        assert not processes.wait_for(lambda: False)
        assert processes.is_stopping
        processes.run()  # returns at once
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_is_not_ready_in_time_is_an_error(tmp_path: Path) -> None:
    with supervised(tmp_path / "out") as processes, pytest.raises(UpError, match="Not ready after 0 s"):
        processes.wait_for(lambda: False, within_s=0)


def test_a_reader_that_reads_nothing_stops_nobody() -> None:
    unread, written = os.pipe()
    with os.fdopen(written, "w") as stream:
        printer = Printer(stream, colours=False)
        for _ in range(12_000):  # more than the pipe and the queue take
            printer.line("child", "x" * 100)
        os.close(unread)
        printer.close()


def test_lines_are_lost_while_their_disk_is_full_and_no_later_ones() -> None:
    with small_disk(1) as disk:
        with (disk.folder / "log").open("w") as stream:
            printer = Printer(stream, colours=False)
            disk.fill()
            for _ in range(3):
                printer.line("child", "lost" * 2000)
            eventually(printer._waiting.empty)
            disk.free()
            printer.line("child", "printed")
            printer.close()
        assert (disk.folder / "log").read_text().endswith("child    | printed\n")


def test_a_port_that_is_given_back_in_a_moment_is_waited_for() -> None:
    """As by the processes of a Plaudit that was just killed."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        threading.Timer(0.3, lambda: taken.shutdown(socket.SHUT_RDWR)).start()
        supervisor.check_port("127.0.0.1", port, "--port N")


def test_a_childs_end_is_noticed_although_its_own_children_have_its_output(tmp_path: Path) -> None:
    with supervised(tmp_path / "out") as processes, processes.signals():
        script = f"sleep 600 & echo $! > {tmp_path}/its; touch {tmp_path}/up; exec sleep 600"
        child = processes.add_server(shell(script))
        assert processes.wait_for((tmp_path / "up").exists)
        assert child.process is not None
        killed = threading.Timer(0.2, child.process.send_signal, [signal.SIGKILL])
        killed.start()
        began = time.monotonic()
        processes.run_once(60)
        assert time.monotonic() - began < 30
        killed.join()
        os.kill(int((tmp_path / "its").read_text()), signal.SIGKILL)


def test_a_taken_port_is_said_with_how_to_choose_another() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UpError, match=f"Port {port} is taken: choose another with --port N"):
            supervisor.check_port("127.0.0.1", port, "--port N")
    supervisor.check_port("127.0.0.1", port, "--port N")
