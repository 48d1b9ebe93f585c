"""How many connections the limit of open files allows."""

import subprocess
import sys

import pytest

from app.server import open_files
from tests.service import ROOT

ALLOW = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
from app.server import open_files
print(open_files.allow(900, reserved=100), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "allowed", "raised_to"),
    [
        (1024, 4096, 900, 1024),
        (256, 4096, 900, 1000),
        (256, 600, 500, 600),
        (64, 64, open_files.MIN_CONNECTIONS, 64),
    ],
)
def test_the_limit_is_raised_as_far_as_needed_and_some_files_are_reserved(
    soft: int, hard: int, allowed: int, raised_to: int
) -> None:
    command = [sys.executable, "-c", ALLOW, str(soft), str(hard)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(allowed), str(raised_to)]
