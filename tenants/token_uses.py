"""When static tokens were last used: noted by every call, and written once a minute, by a thread beside the calls."""

import threading
import time

import structlog
from sqlalchemy import text

from tenants.db import tenant_tx, utcnow
from tenants.fair_cache import FairCache, Groups

EVERY_S = 60.0
MAX_NOTED = 20_000
MAX_NOTED_OF_TENANT = MAX_NOTED // 2

log = structlog.get_logger()


def note(tenant_id: str, token_id: str) -> None:
    """The token is being used. Waits for nothing, so an event loop may call it."""
    key, now = (tenant_id, token_id), time.monotonic()
    last = _noted.get(key)
    if last is not None and now - last < EVERY_S:
        return
    _noted.put(key, now)
    with _lock:
        is_written_already = bool(_to_write)
        _to_write.setdefault(tenant_id, set()).add(token_id)
    if not is_written_already:
        try:
            threading.Thread(target=_write_all, name="token-uses", daemon=True).start()
        except RuntimeError:  # no thread can be started: the next use of a minute later is written again
            with _lock:
                _to_write.clear()


def _write_all() -> None:
    """Run by a thread of its own, until nothing is left to write."""
    while True:
        with _lock:
            tenant_id, token_ids = next(iter(_to_write.items()), ("", set[str]()))
            written = sorted(token_ids)
        if not written:
            return
        try:
            with tenant_tx(tenant_id) as tx:
                tx.run(_WRITE, {"tenant": tenant_id, "ids": written, "now": utcnow(), "seconds": EVERY_S / 2})
        except Exception as error:  # noqa: BLE001  the next use of a minute later is written again
            data = {"error": type(error).__name__}
            log.warning("the use of tokens was not written", action="token_uses.failed", tenantId=tenant_id, data=data)
        with _lock:
            _to_write[tenant_id].difference_update(written)
            if not _to_write[tenant_id]:
                del _to_write[tenant_id]


def _groups_of(used: tuple[str, str], _at: float) -> Groups:
    """The tenant, and all, and how many tokens of each are noted."""
    return ((used[0],), MAX_NOTED_OF_TENANT), ((), MAX_NOTED)


_lock = threading.Lock()
_noted: FairCache[tuple[str, str], float] = FairCache(_groups_of)
# The tokens of each tenant whose use is still to be written. While there are any, a thread writes them.
_to_write: dict[str, set[str]] = {}
# Other processes write the same.
_WRITE = text("""
    UPDATE static_tokens SET last_used_at = :now
    WHERE tenant_id = :tenant AND id = ANY(:ids)
      AND (last_used_at IS NULL OR last_used_at < :now - make_interval(secs => :seconds)) RETURNING id
""")
