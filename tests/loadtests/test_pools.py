"""Requests of a pool are sent in turn, by several senders, with marks that are replaced."""

from pathlib import Path

from loadtests.pools import NUMBER, UNIQUE, Pool, write_script


def test_senders_share_the_pool_and_no_mark_comes_twice() -> None:
    pool = Pool([f"a {UNIQUE} u{NUMBER}".encode(), f"b {UNIQUE} u{NUMBER}".encode()], modulus=10, stride=3, offset=1)
    sent = [pool.render(sender, 2, number) for number in range(5) for sender in range(2)]
    assert sent[0] == b"a 000000000000 u000001"
    assert sent[1] == b"b 010000000000 u000004"
    assert sent[2] == b"a 000000000001 u000007"
    assert len({request.split()[1] for request in sent}) == 10
    assert {request.split()[2] for request in sent} == {b"u%06d" % number for number in range(10)}


def test_a_request_keeps_its_length() -> None:
    pool = Pool([f"{UNIQUE}{NUMBER}".encode()], modulus=1_000_000, offset=999_999)
    assert {len(pool.render(sender, 255, number)) for sender in (0, 254) for number in (0, 10**9)} == {18}


def test_the_script_reads_what_was_written(tmp_path: Path) -> None:
    script = write_script(Pool([b"one\r\n", b"three"], modulus=7, offset=3), tmp_path, senders=2)
    assert (tmp_path / "requests").read_bytes() == b"5\none\r\n5\nthree"
    text = script.read_text()
    assert f'FILE = "{tmp_path}/requests"' in text
    assert "SENDERS = 2\nSTRIDE = 1\nOFFSET = 3\nMODULUS = 7\n" in text
