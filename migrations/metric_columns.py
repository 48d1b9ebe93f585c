"""What a migration adds for a new metric or window. New columns have a default, so the previous release still works."""

from collections.abc import Iterable, Iterator


def page_metric(name: str, sql_type: str, windows: Iterable[str]) -> Iterator[str]:
    """The statements for a page metric: its columns, and its version rows for the global boards."""
    for window in windows:
        yield f"ALTER TABLE page_stats ADD COLUMN {name}_{window} {sql_type} NOT NULL DEFAULT 0"
        yield f"INSERT INTO global_boards (time_window, metric) VALUES ('{window}', '{name}') ON CONFLICT DO NOTHING"  # noqa: S608  the migration's own names
