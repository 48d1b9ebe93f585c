"""What all commands share that `app/cli/__init__.py` puts together: their help, their start, and --data-dir."""

import subprocess
from pathlib import Path

import pytest
from click import Group
from click.testing import CliRunner

from app.cli import cli
from tests.service import PLAUDIT, ROOT, own_servers_env, plaudit


def test_every_command_has_help() -> None:
    top = CliRunner().invoke(cli, ["--help"]).stdout
    assert "..." not in top.replace("[ARGS]...", ""), "no summary is cut off"
    for name, command in cli.commands.items():
        assert command.hidden or f"  {name} " in top
        inner = [[name, sub] for sub in command.commands] if isinstance(command, Group) else [[name]]
        for arguments in [[name], *inner]:
            result = CliRunner().invoke(cli, [*arguments, "--help"])
            assert result.exit_code == 0
            assert len(result.stdout.splitlines()) > 4


NAMED = {"DATABASE_URL": "postgresql://u@h/d", "REDIS_URL": "redis://h/0", "PLAUDIT_SECRET_KEY": "x" * 32}


@pytest.mark.parametrize("arguments", [["--help"], ["worker"], ["live"]])
def test_a_command_that_needs_no_library_loads_none(arguments: list[str], tmp_path: Path) -> None:
    """`plaudit --help` is quick, and a process that becomes another program does not load everything twice."""
    until_it_becomes_another = "import atexit, os, sys, app.cli as c\nos.execv = lambda *_: sys.exit()\n"
    shown = "atexit.register(lambda: print('loaded', *sorted({name.split('.')[0] for name in sys.modules})))\nc.main()"
    done = subprocess.run(
        [*PLAUDIT[:-2], "-c", until_it_becomes_another + shown, "--data-dir", str(tmp_path), *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=own_servers_env() | NAMED,
    )
    *_, loaded = done.stdout.splitlines()
    assert loaded.split()[0] == "loaded", done.stderr
    heavy = {"sqlalchemy", "psycopg", "redis", "flask", "structlog", "rich", "rq", "gunicorn", "granian", "alembic"}
    assert heavy & {*loaded.split()} == set()
    assert "click" in loaded.split()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--data-dir", "{}", "tenant", "list"),
        ("tenant", "--data-dir", "{}", "list"),
        ("tenant", "list", "--json", "--data-dir={}"),
    ],
)
def test_the_data_folder_may_be_named_anywhere(arguments: tuple[str, ...], tmp_path: Path) -> None:
    named = tmp_path / "this-one"
    said = plaudit(*(argument.format(named) for argument in arguments), data_dir=tmp_path / "not-this-one")
    assert f"There is no Plaudit in {named}" in said.stderr
