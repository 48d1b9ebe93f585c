"""Where the servers' binaries and data are, so that the servers' user reaches them and no data is mistaken."""

from pathlib import Path

import pytest

from app.run import server_files
from app.run.data_folder import LocalServersError
from app.run.server_files import home_for, postgres_version, refuse_other_versions, wheel_binaries
from app.run.server_user import User

STRANGER = User(60_601, 60_601)


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder that the servers' user cannot reach; homes are made beside it."""
    monkeypatch.setattr(server_files, "ROOT_HOME", tmp_path / "home")
    folder = tmp_path / "closed" / "data"
    folder.mkdir(parents=True)
    folder.parent.chmod(0o700)
    return folder


def test_the_wheels_binaries_run() -> None:
    binaries = wheel_binaries()
    assert postgres_version(binaries.postgres) >= 18
    assert binaries.valkey.stat().st_mode & 0o100


def test_data_is_kept_where_the_servers_user_reaches_it(closed: Path, tmp_path: Path) -> None:
    assert home_for(closed, None) == closed, "an ordinary user runs the servers as themselves"
    home = home_for(closed, STRANGER)
    assert home.parent == tmp_path / "home" / "data"
    assert home.stat().st_mode & 0o777 == 0o711
    assert home_for(closed, STRANGER) == home, "at the next start too"
    assert closed.parent.stat().st_mode & 0o777 == 0o700, "the mode of a folder that is not ours is never changed"


def test_a_home_elsewhere_is_refused(closed: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (closed / "postgres-home").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LocalServersError, match="points to"):
        home_for(closed, STRANGER)


def test_data_that_cannot_be_reached_is_no_reason_to_begin_anew(closed: Path) -> None:
    (closed / "postgres-18").mkdir()
    with pytest.raises(LocalServersError, match="chmod"):
        home_for(closed, STRANGER)


@pytest.mark.parametrize(
    ("folders", "refused"),
    [
        ({}, None),
        ({"postgres-18": "18"}, None),
        ({"postgres-17": "17"}, "data of PostgreSQL 17, and this Plaudit runs 18"),
        ({"postgres-17": "17", "postgres-18": "18"}, None),  # an upgrade that kept the old data
        ({"postgres-9": "9", "postgres-17.new": "17"}, "data of PostgreSQL 9,"),
        ({"postgres-18.new": "18"}, None),  # what an interrupted initdb left
        ({"postgres-18": "17"}, "data of PostgreSQL 17, not 18"),
    ],
)
@pytest.mark.parametrize("is_linked", [False, True])
def test_data_of_another_version_is_refused(
    folders: dict[str, str], refused: str | None, is_linked: bool, tmp_path: Path
) -> None:
    data_dir = home = tmp_path / "data"
    data_dir.mkdir()
    if is_linked:
        home = tmp_path / "home"
        home.mkdir()
        (data_dir / "postgres-home").symlink_to(home)
    for name, version in folders.items():
        (home / name).mkdir()
        (home / name / "PG_VERSION").write_text(f"{version}\n")
    if refused is None:
        refuse_other_versions(data_dir, 18)
        return
    with pytest.raises(LocalServersError, match=refused) as said:
        refuse_other_versions(data_dir, 18)
    assert "plaudit restore" in str(said.value)
