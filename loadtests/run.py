"""`make loadtest`: run locust for a bounded time, on a service that is started for it or on another instance.

The thresholds decide the exit status: 0 if all are kept, 1 if one is broken. 2: it could not run.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.footprint import PREFIX, SCOPES, Footprint
from loadtests.instance import Instance, Refused, checked_host
from loadtests.lag import LagProbe, Lags
from loadtests.service import ROOT, running_service

MAX_SECONDS = 300
MAX_USERS = 500
STOP_WITHIN_S = 20
# Besides, the service that is started for it: players, who sign up, and quests, of which nothing can be removed.
ELSEWHERE = ("TenantApp", "AppActions", "BoardReader", "Watcher")
HERE = ("TenantApp", "Player", "Quester", "BoardReader", "Watcher")

DEFAULTS_ELSEWHERE = {"max_error_rate": 0.01, "max_p99_ms": 1_000.0, "max_lag_ms": 5_000.0}


@dataclass(frozen=True)
class Figures:
    """What locust measured, of all requests together."""

    requests: int
    failures: int
    p99_ms: float

    @property
    def error_rate(self) -> float:
        return self.failures / self.requests if self.requests else 1.0


def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        _check_bounds(options)
        sys.exit(_elsewhere(options) if options.host else _here(options))
    except Refused as refused:
        print(f"loadtest: {refused}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="loadtest", description=__doc__)
    parser.add_argument("--users", type=int, default=20, help=f"at once, at most {MAX_USERS}")
    parser.add_argument("--seconds", type=int, default=20, help=f"at most {MAX_SECONDS}")
    parser.add_argument("--host", help="another instance, as https://plaudit.example; needs CLIENT_ID, CLIENT_SECRET")
    parser.add_argument("--yes", action="store_true", help="do not ask before settings of that instance are raised")
    parser.add_argument("--max-p99-ms", type=float, help="of all requests (with --host: 1000)")
    parser.add_argument("--max-error-rate", type=float, help="a share of the requests (with --host: 0.01, else 0)")
    parser.add_argument("--max-lag-ms", type=float, help="from a like's answer to the board, p99 (with --host: 5000)")
    return parser


def _check_bounds(options: argparse.Namespace) -> None:
    for name, value, most in (("--seconds", options.seconds, MAX_SECONDS), ("--users", options.users, MAX_USERS)):
        if not 1 <= value <= most:
            raise Refused(f"{name} must be from 1 to {most}, not {value}")


def _here(options: argparse.Namespace) -> int:
    """On a service that is started for it."""
    with tempfile.TemporaryDirectory(prefix="plaudit-load-") as folder:
        Path(folder).chmod(0o711)
        with running_service(Path(folder) / "data", "--demo", "--no-traffic") as service:
            instance = Instance(service.url, service.ready["client_id"], service.ready["client_secret"])
            instance.sign_in()
            body = {"space": "lag", "title": "Load test lag", "url": "/load/lag"}
            instance.call("PUT", "/api/v1/pages/load-lag", json=body)
            with LagProbe(instance, prefix="load", space="lag") as probe:
                figures = _run_locust(instance, HERE, options, prefix="load")
            return _judge(options, figures, probe.lags, max_error_rate=0.0)


def _elsewhere(options: argparse.Namespace) -> int:
    """On an instance that others use."""
    host = checked_host(options.host)
    client_id, client_secret = (os.environ.get(name, "") for name in ("CLIENT_ID", "CLIENT_SECRET"))
    if not client_id or not client_secret:
        create = f"plaudit client create TENANT --scopes {','.join(SCOPES)}"
        raise Refused(f"set CLIENT_ID and CLIENT_SECRET beside HOST; this creates them: {create}")
    instance = Instance(host, client_id, client_secret)
    instance.sign_in()
    footprint = Footprint(instance)
    _confirm(options, footprint, tenant=footprint.check())
    with _removed_at_the_end(footprint):
        footprint.create()
        with LagProbe(instance, prefix=footprint.prefix, space=f"{PREFIX}-lag") as probe:
            figures = _run_locust(instance, ELSEWHERE, options, prefix=footprint.prefix)
    return _judge(options, figures, probe.lags, **DEFAULTS_ELSEWHERE)


def _confirm(options: argparse.Namespace, footprint: Footprint, *, tenant: str) -> None:
    print(f"{options.users} users for {options.seconds} s on {footprint.instance.host}, tenant {tenant}.")
    print(f"What is created starts with {footprint.prefix} and is removed at the end.")
    for name, (before, wanted) in footprint.to_raise().items():
        print(f"Meanwhile the tenant's setting {name} is {wanted} instead of {before}.")
    if options.yes:
        return
    if not sys.stdin.isatty():
        raise Refused("nobody can be asked here: add --yes (make loadtest ARGS=--yes …)")
    if input("Go on? [y/N] ").strip().lower() not in {"y", "yes"}:
        raise Refused("nothing was changed")


@contextlib.contextmanager
def _removed_at_the_end(footprint: Footprint) -> Iterator[None]:
    """Whatever ends the block: its end, an error, Ctrl-C or SIGTERM. The removal itself is not interrupted by these."""
    try:
        yield
    finally:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        print(f"Removing what starts with {footprint.prefix} ...", flush=True)
        problems = footprint.remove()
        for problem in problems:
            print(f"NOT REMOVED: {problem}", file=sys.stderr)
        for number, handler in before.items():
            signal.signal(number, handler)
        if problems:
            raise Refused(f"see above: remove what is left of {footprint.prefix} yourself")


def _run_locust(instance: Instance, classes: tuple[str, ...], options: argparse.Namespace, *, prefix: str) -> Figures:
    with tempfile.TemporaryDirectory(prefix="plaudit-load-") as folder:
        file = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "locust", "-f", "loadtests/locustfile.py", "--headless", "--only-summary"]
        command += ["--host", instance.host, "--users", str(options.users), "--spawn-rate", str(options.users)]
        command += ["--run-time", f"{options.seconds}s", "--stop-timeout", "5", "--exit-code-on-error", "0", *classes]
        own = {
            "PLAUDIT_CLIENT_ID": instance.client_id,
            "PLAUDIT_CLIENT_SECRET": instance.client_secret,
            "PLAUDIT_LOADTEST_HOST": instance.host,
            "PLAUDIT_LOADTEST_PREFIX": prefix,
            "PLAUDIT_LOADTEST_FIGURES": str(file),
        }
        # In a session of its own: Ctrl-C reaches it through us, and we remove what it has created afterwards.
        locust = subprocess.Popen(command, cwd=ROOT, env=os.environ | own, start_new_session=True)
        try:
            status = locust.wait(options.seconds + 60)
        finally:
            _stop(locust)
        if status or not file.exists():
            raise Refused(f"locust ended with status {status}, and has measured nothing")
        return Figures(**json.loads(file.read_text()))


def _stop(locust: "subprocess.Popen[Any]") -> None:
    if locust.poll() is None:
        locust.terminate()
        try:
            locust.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            locust.kill()
            locust.wait()


def _judge(
    options: argparse.Namespace,
    figures: Figures,
    lags: Lags,
    *,
    max_error_rate: float,
    max_p99_ms: float | None = None,
    max_lag_ms: float | None = None,
) -> int:
    """Print the summary; returns the exit status. A threshold that was given replaces the default."""
    given = (options.max_p99_ms, options.max_error_rate, options.max_lag_ms)
    defaults = (max_p99_ms, max_error_rate, max_lag_ms)
    p99_ms, rate, lag_ms = (default if value is None else value for value, default in zip(given, defaults, strict=True))
    lag_p50, lag_p99 = lags.percentile(0.5), lags.percentile(0.99)
    print(f"Requests: {figures.requests:,}, p99 {figures.p99_ms:.0f} ms, errors {figures.error_rate:.2%}")
    if lag_p50 is None or lag_p99 is None:
        print("Board lag: not measured")
    else:
        print(f"Board lag: p50 {lag_p50:.0f} ms, p99 {lag_p99:.0f} ms ({len(lags.measured)} likes)")
    broken = []
    if p99_ms is not None and figures.p99_ms > p99_ms:
        broken.append(f"p99 of {figures.p99_ms:.0f} ms is above {p99_ms:g} ms (--max-p99-ms)")
    if rate is not None and figures.error_rate > rate:
        broken.append(f"{figures.error_rate:.2%} errors are above {rate:.2%} (--max-error-rate)")
    if lag_ms is not None and (lag_p99 is None or lag_p99 > lag_ms):
        shown = "that was not measured" if lag_p99 is None else f"of {lag_p99:.0f} ms"
        broken.append(f"a board lag {shown} is above {lag_ms:g} ms (--max-lag-ms)")
    for one in broken:
        print(f"FAILED: {one}")
    return 1 if broken else 0


if __name__ == "__main__":
    main()
