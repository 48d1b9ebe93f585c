"""One entry in the table of metrics: pytest loads it with `-p`, before any module that follows from the table."""

from analytics.metrics import Counted, Metric, register

SHARES = register(
    Metric("shares", "Shares", Counted("page_shares", time="shared_at", aggregate="count(*)", total="shares"))
)
