import pytest

from app.settings import Settings, SettingsError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PLAUDIT_PORT", "eight"),
        ("PLAUDIT_PORT", "70000"),
        ("PLAUDIT_PORT", "²"),
        ("PLAUDIT_PROXY_HOPS", "-1"),
        ("DATABASE_URL", "mysql://x/y"),
        ("DATABASE_URL", "postgresql://host"),
        ("DATABASE_URL", "postgresql://h:port/db"),
        ("REDIS_URL", "localhost:6379"),
        ("PLAUDIT_PUBLIC_URL", "plaudit.example"),
        ("PLAUDIT_SECRET_KEY", "short"),
        ("LOG_FORMAT", "xml"),
    ],
)
def test_a_wrong_value_is_named_in_one_line(name: str, value: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Settings.from_env({name: value})
    assert name in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_password_in_an_address_is_not_repeated() -> None:
    with pytest.raises(SettingsError) as refused:
        Settings.from_env({"DATABASE_URL": "mysql://me:hunter2@host/db"})
    assert "hunter2" not in str(refused.value)


def test_the_defaults_need_nothing() -> None:
    settings = Settings.from_env({})
    assert (settings.port, settings.live_port, settings.proxy_hops) == (8000, 8001, 0)
    assert settings.public_url == "http://127.0.0.1:8000"
    assert settings.live_url == "http://127.0.0.1:8001"


def test_behind_a_proxy_the_sockets_are_on_the_public_origin() -> None:
    assert Settings.from_env({"PLAUDIT_PUBLIC_URL": "https://p.example/"}).live_url == "https://p.example"
    assert Settings.from_env({"PLAUDIT_PUBLIC_URL": "https://p.example/"}).has_public_url
    assert not Settings.from_env({"PLAUDIT_PUBLIC_URL": ""}).has_public_url
