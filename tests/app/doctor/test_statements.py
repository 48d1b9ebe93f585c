"""The most expensive statements, without values."""

import pytest
from sqlalchemy import text

from app.doctor import statements
from app.doctor.installation import Installation


def test_the_statements_of_this_database_are_listed(scratch: Installation) -> None:
    if not scratch.settings.service_database_url:
        pytest.skip("the operator's server may not have the extension")
    with scratch.reading() as connection:
        for number in range(3):
            connection.execute(text(f"SELECT pg_sleep(0.05), 'secret {number}' AS costly"))
    found, said = statements.most_expensive(scratch)
    (costly,) = [statement for statement in found if "costly" in statement.text]
    assert said == []
    assert (costly.calls, costly.total_ms >= 150) == (3, True)
    assert "secret" not in costly.text
    assert 0 < costly.share <= 1
    assert len(found) <= statements.MAX_STATEMENTS


def test_a_server_without_the_extension_is_no_problem(scratch: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "_read", lambda *_: None)
    found, (said,) = statements.most_expensive(scratch)
    assert found == []
    assert "not installed" in said.what


def test_a_statement_is_shown_on_one_line_without_values() -> None:
    assert statements.shorten("SELECT *\n  FROM pages\tWHERE x = $1") == "SELECT * FROM pages WHERE x = $1"
    assert statements.shorten("SET LOCAL plaudit.tenant = 'acme'") == "SET LOCAL plaudit.tenant = '…'"
    long = statements.shorten("SELECT " + "a, " * 10_000)
    assert len(long) == statements.MAX_CHARS
    assert long.endswith("…")
