"""What a migration adds for a new metric or window. The release before keeps running: new columns have a default."""

from collections.abc import Iterable, Iterator


def page_metric(name: str, sql_type: str, windows: Iterable[str]) -> Iterator[str]:
    """The statements for a page metric: its columns, and its rows among the versions of the global boards."""
    for window_name in windows:
        yield f"ALTER TABLE page_stats ADD COLUMN {name}_{window_name} {sql_type} NOT NULL DEFAULT 0"
        yield _global_board(window_name, name)


def window(name: str, page_metrics: dict[str, str]) -> Iterator[str]:
    """The statements for a window, for page metrics with their SQL types."""
    for metric, sql_type in page_metrics.items():
        yield f"ALTER TABLE page_stats ADD COLUMN {metric}_{name} {sql_type} NOT NULL DEFAULT 0"
        yield _global_board(name, metric)
    yield f"ALTER TABLE user_stats ADD COLUMN value_{name} bigint NOT NULL DEFAULT 0"
    yield f"ALTER TABLE user_stats ADD COLUMN member_{name} text NOT NULL DEFAULT ''"


def _global_board(window_name: str, metric: str) -> str:
    return (
        f"INSERT INTO global_boards (time_window, metric) VALUES ('{window_name}', '{metric}') ON CONFLICT DO NOTHING"  # noqa: S608  names of the migration
    )
