"""`make loadtest`: start a service, and run locust against it for a bounded time."""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from loadtests.service import ROOT, running_service

MAX_SECONDS = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=20)
    parser.add_argument("--seconds", type=int, default=20)
    arguments = parser.parse_args()
    seconds = min(arguments.seconds, MAX_SECONDS)
    with tempfile.TemporaryDirectory(prefix="plaudit-load-") as folder:
        Path(folder).chmod(0o711)
        with running_service(Path(folder) / "data", "--demo", "--no-traffic") as service:
            command = [sys.executable, "-m", "locust", "-f", "loadtests/locustfile.py", "--headless", "--only-summary"]
            command += ["--host", service.url, "--users", str(arguments.users), "--spawn-rate", str(arguments.users)]
            command += ["--run-time", f"{seconds}s", "--stop-timeout", "5"]
            credentials = {
                "PLAUDIT_CLIENT_ID": service.ready["client_id"],
                "PLAUDIT_CLIENT_SECRET": service.ready["client_secret"],
            }
            done = subprocess.run(command, cwd=ROOT, env=os.environ | credentials, timeout=seconds + 60, check=False)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
