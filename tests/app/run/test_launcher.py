"""The launcher: what it starts ends with its parent, as whom it should, with no rights for others."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from app.run import launcher
from tests.app.run.conftest import as_root
from tests.service import eventually

LAUNCH = [sys.executable, "-I", "-S", launcher.__file__]


def launch(*command: str, parent: int | None = None, user: str = "-") -> "subprocess.CompletedProcess[str]":
    start = [*LAUNCH, str(parent or os.getpid()), "SIGKILL", user, *command]
    return subprocess.run(start, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGQUIT"])
def test_a_program_ends_with_the_process_that_started_it(signal_name: str) -> None:
    code = """if True:
        import os, subprocess, sys
        *launch, signal_name = sys.argv[1:]
        command = [*launch, str(os.getpid()), signal_name, "-", "/bin/sh", "-c", "echo $$; exec sleep 600"]
        subprocess.run(command)
    """
    parent = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, *LAUNCH, signal_name], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    program = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    # Its new parent may not have read its status yet.
    eventually(lambda: not program.is_running() or program.status() == psutil.STATUS_ZOMBIE)


def test_a_program_whose_parent_is_dead_already_does_not_start() -> None:
    done = launch("/bin/echo", "started", parent=os.getppid())
    assert (done.returncode, done.stdout) == (-9, "")
    assert launch("/bin/echo", "started").stdout == "started\n"


def test_what_a_program_writes_is_private(tmp_path: Path) -> None:
    assert launch("/bin/sh", "-c", f"echo x > {tmp_path}/file").returncode == 0
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


@as_root
def test_root_starts_a_program_as_another_user_without_roots_groups() -> None:
    done = launch("/bin/sh", "-c", "id -u; id -g; id -G", user="60601:60602")
    assert done.stdout.split() == ["60601", "60602", "60602"], done.stderr
