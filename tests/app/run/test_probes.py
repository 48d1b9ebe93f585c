"""Probes: any answer of a server counts, but for that it is about to end."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from app.run import probes
from app.run.probes import Probes, Question
from tests.app.run.conftest import RunningServers
from tests.service import eventually


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "EVERY_S", 0.05)
    monkeypatch.setattr(probes, "ANSWER_WITHIN_S", 1.0)


def questions_of(running: RunningServers) -> dict[str, Question]:
    servers, _ = running
    asked = {server.name: server.question for server in (servers.postgres(), servers.valkey())}
    return {name: question for name, question in asked.items() if question is not None}


def test_both_servers_answer_and_one_that_stands_still_does_not(running_servers: RunningServers) -> None:
    questions, (_, processes) = questions_of(running_servers), running_servers
    assert {name: question.is_answered() for name, question in questions.items()} == {"postgres": True, "valkey": True}
    for name, question in questions.items():
        os.kill(processes[name].pid, signal.SIGSTOP)
        try:
            assert not question.is_answered()
        finally:
            os.kill(processes[name].pid, signal.SIGCONT)
        eventually(question.is_answered)


def test_a_postgresql_without_a_free_connection_answers(running_servers: RunningServers) -> None:
    servers, _ = running_servers
    question, is_full = questions_of(running_servers)["postgres"], False
    with contextlib.ExitStack() as connections:
        while not is_full:
            try:
                connections.enter_context(psycopg.connect(servers.addresses.database_url))
            except psycopg.OperationalError:
                is_full = True
        assert question.is_answered()


@pytest.fixture
def answering() -> Iterator[tuple[Question, list[bytes]]]:
    """A server that answers each question with the first of these answers; without one, it closes the connection."""
    answers = [b"+PONG"]

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.recv(100)
                connection.sendall(b"".join(answers[:1]))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield Question(listening.getsockname()[1], b"PING"), answers
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize(
    ("answer", "is_answer"),
    [
        ([b"E...Mthe database system is starting up"], True),
        ([b"E...Mthe database system is in recovery mode"], True),
        ([b"E...Mthe database system is shutting down"], False),
        ([b"-NOAUTH Authentication required."], True),
        ([], False),
    ],
)
def test_a_server_that_starts_or_recovers_answers(
    answering: tuple[Question, list[bytes]], answer: list[bytes], is_answer: bool
) -> None:
    question, answers = answering
    answers[:] = answer
    assert question.is_answered() == is_answer


def test_a_server_is_lost_after_several_questions_in_a_row_without_an_answer(
    answering: tuple[Question, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    question, answers = answering
    watched = Probes()
    watched.add("server", question)
    time.sleep(0.3)
    assert not watched.is_lost("server")
    answers.clear()
    eventually(lambda: watched.is_lost("server"))
    answers.append(b"+PONG")
    eventually(lambda: not watched.is_lost("server"))
