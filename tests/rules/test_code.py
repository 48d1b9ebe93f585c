"""Rules of the code."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from flask import Flask

from analytics.boards import redis_store
from app.http.rights import declared, public
from app.live.server import create_live_app
from app.settings import Settings
from workers import schedule

ROOT = Path(__file__).parents[2]
PACKAGES = ("analytics", "app", "tenants", "workers")
MAX_MODULES = 16
MAX_LINES = 400
# Files of tests that are named for a subject instead of a module.
SUBJECTS = {
    "tests/analytics/boards/test_model.py": "random histories: ingest, projection and every way to read a board",
    "tests/analytics/boards/test_one_connection.py": "what a worker does with boards, with a pool of one connection",
    "tests/analytics/boards/test_sharing.py": "a setting that outbox, progress, projection and rebuilding carry out",
    "tests/analytics/scores/test_daily_caps.py": "two terms of the catalog that actions and payments enforce",
    "tests/analytics/scores/test_answered_ranks.py": "the rank of a payment, from payments to both sides of the boards",
    "tests/app/cli/test_commands.py": "app/cli/__init__.py: help, start and --data-dir of all commands",
    "tests/app/http/test_read_only_database.py": "a standby, to routes, the fast lane, the group commit and readiness",
    "tests/app/server/test_raw_requests.py": "requests as bytes, through connections, bodies, the loop and threads",
    "tests/tenants/test_isolation.py": "the roles and policies of the database, behind every module",
    "tests/tenants/test_row_level_security.py": "the policies of every table, whichever module owns it",
}
# Modules without a file of tests.
UNTESTED = {
    "app/http/services.py": "the names of what routes share; tests/app/test_web.py tests what is installed",
    "app/live/services.py": "the same for the live process",
}

# The modules that change boards in Redis, under the tenant's board lock (promise P4).
BOARD_WRITERS = {
    "analytics/boards/filling.py",
    "analytics/boards/retiring.py",
    "analytics/boards/projection.py",
    "analytics/boards/rebuilding.py",
    "analytics/boards/recomputing.py",
}
# What every module may use of `redis_store`; whatever else it has is taken for writing.
NOT_WRITING = {
    "CHANNEL",
    "RedisState",
    "is_complete",
    "mark_incomplete",
    "published_version",
    "ready_key",
    "run_id",
    "state",
    "without_marker",
}


def undeclared(app: Flask) -> list[str]:
    rules = list(app.url_map.iter_rules())
    assert rules
    return [rule.rule for rule in rules if declared(app.view_functions[rule.endpoint]) is None]


def test_no_route_without_a_declared_auth(app: Flask, settings: Settings) -> None:
    assert undeclared(app) == []
    assert undeclared(create_live_app(settings)) == []


def test_the_auth_rule_notices_a_bare_route(own_app: Flask) -> None:
    own_app.add_url_rule("/bare", view_func=lambda: "", endpoint="bare")
    own_app.add_url_rule("/open", view_func=public(lambda: ""), endpoint="open")
    assert undeclared(own_app) == ["/bare"]


def test_scheduled_jobs_exist() -> None:
    assert schedule.SCHEDULE
    for entry in schedule.SCHEDULE:
        assert entry.seconds > 0
        assert callable(schedule.resolve(entry.job)), entry.job
    with pytest.raises(AttributeError):
        schedule.resolve("workers.jobs.not_there")


def test_imports_go_one_way() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_nothing_happens_at_import() -> None:
    """The modules import without any environment, and connect to nothing."""
    code = "import app.web, app.live, app.cli, workers.run, workers.jobs; print('imported')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={}, capture_output=True, text=True, check=False)
    assert done.stdout == "imported\n", done.stderr


def test_the_environment_is_read_in_one_place() -> None:
    """Settings are read in `app/settings.py`; what our processes start with is assembled in `app/run/environment.py`.

    `tenants/logs.py` reads whether colours are wanted: it is below the settings and cannot import them.
    """
    packages = ("app", "analytics", "tenants", "workers", "migrations")
    files = [file for package in packages for file in (ROOT / package).rglob("*.py")]
    reading = {str(file.relative_to(ROOT)) for file in files if re.search(r"os\.(environ|getenv)", file.read_text())}
    assert reading == {"app/settings.py", "app/run/environment.py", "tenants/logs.py"}


WRITING = ("analytics.boards.redis_store", "analytics.boards.filling")


def used_of_redis_store(source: str) -> set[str]:
    """The names that a module uses of `analytics.boards.redis_store`, and of `filling`, which only writes."""
    used: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in WRITING:
            used |= {alias.name for alias in node.names}
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "redis_store":
            used.add(node.attr)
    return used


def test_nobody_takes_a_second_connection() -> None:
    """A pool of one is enough for a process that does one thing at a time: see tenants/db.py."""
    files = [file for name in PACKAGES for file in (ROOT / name).rglob("*.py")]
    found = [str(file.relative_to(ROOT)) for file in files if "separate=True" in file.read_text()]
    assert found == []


def test_few_modules_write_boards() -> None:
    assert vars(redis_store).keys() >= NOT_WRITING
    writing = {
        str(file.relative_to(ROOT))
        for name in PACKAGES
        for file in (ROOT / name).rglob("*.py")
        if used_of_redis_store(file.read_text()) - NOT_WRITING
    }
    assert writing == BOARD_WRITERS


def test_the_rule_notices_each_way_to_write_a_board() -> None:
    assert used_of_redis_store("from analytics.boards.redis_store import CHANNEL, write") == {"CHANNEL", "write"}
    assert used_of_redis_store("from analytics.boards.filling import Filling") == {"Filling"}
    assert used_of_redis_store("from analytics.boards import redis_store\nredis_store.write(client)") == {"write"}
    assert used_of_redis_store("from analytics.boards import redis_reads\nredis_reads.read_top(board)") == set()


def modules_of(folder: Path) -> list[Path]:
    return [file for file in folder.glob("*.py") if not file.name.startswith("__")]


def misplaced_tests(root: Path, subjects: Iterable[str], untested: Iterable[str]) -> list[str]:
    """The files of tests that name no module of the package they mirror, the modules without a file of tests, and
    exceptions that are none.
    """
    files = {str(file.relative_to(root)) for name in PACKAGES for file in (root / "tests" / name).rglob("test_*.py")}
    modules = {
        str(file.relative_to(root)): str(Path("tests", file.relative_to(root)).with_name(f"test_{file.name}"))
        for name in PACKAGES
        for file in (root / name).rglob("*.py")
        if not file.name.startswith("__")
    }
    without = {module for module, file in modules.items() if file not in files}
    no_module = files - {*modules.values()}
    return sorted((no_module ^ {*subjects}) | (without ^ {*untested}))


def too_big(root: Path) -> list[str]:
    """The packages with too many modules directly in them, and the modules with too many lines."""
    crowded = [name for name in ("analytics", "app") if len(modules_of(root / name)) > MAX_MODULES]
    files = [file for name in PACKAGES for file in sorted((root / name).rglob("*.py"))]
    assert files
    return crowded + [str(file.relative_to(root)) for file in files if len(file.read_text().splitlines()) > MAX_LINES]


def test_tests_mirror_the_packages() -> None:
    assert misplaced_tests(ROOT, SUBJECTS, UNTESTED) == []


def test_modules_stay_small_and_few() -> None:
    assert too_big(ROOT) == []


def put(root: Path, *files: str, lines: int = 1) -> None:
    for file in files:
        root.joinpath(file).parent.mkdir(parents=True, exist_ok=True)
        root.joinpath(file).write_text("#\n" * lines)


def test_the_rule_notices_tests_that_mirror_nothing(tmp_path: Path) -> None:
    put(tmp_path, "app/__init__.py", "app/api/__init__.py", "app/api/likes.py", "app/web.py", "app/ui/pages.py")
    put(tmp_path, "tests/app/test_web.py", "tests/app/api/test_likes.py", "tests/app/api/test_span.py")
    assert misplaced_tests(tmp_path, ["tests/app/api/test_span.py"], ["app/ui/pages.py"]) == []
    put(tmp_path, "tests/app/ui/test_likes.py")
    assert misplaced_tests(tmp_path, ["tests/app/api/test_likes.py", "tests/app/test_deleted.py"], ["app/web.py"]) == [
        "app/ui/pages.py",  # a module without tests
        "app/web.py",  # a module that has them
        "tests/app/api/test_likes.py",  # a subject that is a module
        "tests/app/api/test_span.py",
        "tests/app/test_deleted.py",
        "tests/app/ui/test_likes.py",  # a module of another package
    ]


def test_the_rule_notices_a_module_too_many_and_a_line_too_many(tmp_path: Path) -> None:
    put(tmp_path, "app/__init__.py", *(f"app/m{number}.py" for number in range(MAX_MODULES)))
    put(tmp_path, "workers/jobs.py", lines=MAX_LINES)
    assert too_big(tmp_path) == []
    put(tmp_path, "app/another.py")
    put(tmp_path, "tenants/db.py", "app/http/auth.py", lines=MAX_LINES + 1)
    assert too_big(tmp_path) == ["app", "app/http/auth.py", "tenants/db.py"]
