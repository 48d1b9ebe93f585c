"""One entry in the table of metrics: pytest loads it with `-p`, before any module that follows from the table."""

from analytics.metrics import Counted, Metric, register

IMAGINARY = register(
    Metric(
        "imaginary", "Imaginary", Counted("page_imaginary", time="imagined_at", aggregate="count(*)", total="imaginary")
    )
)
