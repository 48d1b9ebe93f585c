"""A complete answer of the fast lane, with the headers that answers of ours have."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

Header = tuple[str, str]

DEFAULT_HEADERS: Final = (
    ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)
NOT_MODIFIED: Final = "304 NOT MODIFIED"


@dataclass(slots=True)
class FastAnswer:
    """Everything but the headers that depend on the request or on the service's settings. Made once, if it is kept."""

    status: str
    code: int
    headers: Sequence[Header]
    body: bytes
    # Status and headers as the server sends them, once it has.
    head: bytes | None = None

    @classmethod
    def of(cls, status: str, body: bytes, own: Sequence[Header] = ()) -> "FastAnswer":
        """An answer with these headers of its own, which replace the default ones."""
        names = {name for name, _ in own}
        content = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        default = [header for header in DEFAULT_HEADERS if header[0] not in names]
        return cls(status, int(status[:3]), [*([] if status == NOT_MODIFIED else content), *own, *default], body)
