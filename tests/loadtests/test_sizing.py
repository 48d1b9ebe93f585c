"""The model of sizes: what follows from a load, and that it agrees with the data sets that it is compared with."""

import pytest
from rich.console import Console

from analytics.windows import Window
from loadtests import sizing
from loadtests.bench_sizing import load_of
from loadtests.dataset import TenantSize
from loadtests.sizing import Popularity, parse, readable, size


def test_pages_of_a_popularity_together_get_all_views() -> None:
    for pages in (1, 10, 1_000, 1_000_000):
        groups = sizing._zipf(pages)
        assert sum(share for share, _ in groups) == pytest.approx(1)
        assert sum(share * pages * weight for share, weight in groups) == pytest.approx(1)


def test_the_steps_of_popularity_agree_with_every_single_page() -> None:
    pages, views_per_day = 20_000, 5_000
    total = sum(rank**-sizing.EXPONENT for rank in range(1, pages + 1))
    rates = [views_per_day / 24 * rank**-sizing.EXPONENT / total for rank in range(1, pages + 1)]
    hours = sum(24 * (1 - 2.718281828**-rate) for rate in rates) / pages
    viewed = sum(1 - 2.718281828 ** (-rate * 24) for rate in rates) / pages
    found = Popularity.of_views(pages, views_per_day)
    assert found.hours_per_day == pytest.approx(hours, rel=0.01)
    assert found.viewed[Window.DAY] == pytest.approx(viewed, rel=0.01)


def test_a_data_set_has_the_rows_that_the_model_says() -> None:
    # Counted on the filled database: 1,006,524 hourly rows, 25,932 likes and 504,030 entries of three such tenants.
    tenant = TenantSize("size", 10_000, 10_000, entries=10_000)
    sizes = size(load_of(tenant))
    assert 3 * sizes.rows["page_views_hour"] == pytest.approx(1_006_524, rel=0.001)
    assert 3 * sizes.rows["page_likes"] == 25_932
    assert 3 * sizes.redis_entries == pytest.approx(504_030, rel=0.05)


def test_everything_grows_with_tenants_and_nothing_is_missing() -> None:
    one = size(sizing.load_of(parse(["--tenants", "1"])))
    many = size(sizing.load_of(parse(["--tenants", "100"])))
    assert many.postgres_bytes == pytest.approx(100 * one.postgres_bytes)
    assert many.redis_bytes == pytest.approx(100 * one.redis_bytes)
    assert many.cores == pytest.approx({process: 100 * busy for process, busy in one.cores.items()})
    assert all(one.disk_bytes.values())
    assert all(one.cores.values())


def test_snapshots_cost_what_their_retention_says() -> None:
    short, long = (size(sizing.load_of(parse(["--snapshots-days", days]))).disk_bytes for days in ("39", "399"))
    assert long["leaderboard_snapshots"] == pytest.approx(10 * short["leaderboard_snapshots"])


def test_the_command_shows_tables_totals_and_sockets() -> None:
    console = Console(record=True, width=120)
    options = parse(["--tenants", "10", "--pages", "1000", "--sockets", "100"])
    sizing.show(options, size(sizing.load_of(options)), console)
    shown = console.export_text()
    assert "10 tenants with 1,000 pages each" in shown
    assert all(part in shown for part in ("page_views_hour", "Redis:", "busy on average", "Sockets: 5.2 MB"))


def test_bytes_are_readable() -> None:
    assert [readable(n) for n in (12, 2048, 3 * 2**20, 5 * 2**40)] == ["12 B", "2.0 kB", "3.0 MB", "5.0 TB"]


@pytest.mark.parametrize(
    "option",
    ["--pages=-5", "--pages=0", "--tenants=0", "--users=-1", "--views-per-day=nan", "--public-share=2", "--spaces=x"],
)
def test_a_number_that_cannot_be_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([option])
    assert f"argument {option.partition('=')[0]}: " in capsys.readouterr().err


def test_help_says_what_is_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    assert capsys.readouterr().out.count("(default: ") == 10
