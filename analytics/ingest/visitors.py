"""Browsers' visitors: who is the same, who is a robot, and who was counted already.

A visitor is a hash of network and agent under a salt that changes every day: never stored raw, and of no use the day
after. The same visitor counts once per page in half an hour. Redis remembers that for all processes; without it each
process remembers for itself, as many as fit.
"""

import hashlib
import hmac
import threading
import time
from collections import OrderedDict
from datetime import date
from functools import lru_cache

from tenants.redis import RedisUnavailable, boards, key

ONCE_PER_S = 1800
# Of a User-Agent header, what is compared with the list of robots and tells visitors apart.
MAX_AGENT_CHARS = 512
MOST_REMEMBERED = 100_000


class Visitors:
    def __init__(self, *, secret_key: str) -> None:
        self._secret = secret_key.encode()
        self._lock = threading.Lock()
        self._own: OrderedDict[str, float] = OrderedDict()

    def identify(self, *, network: str, agent: str, today: date) -> str:
        salt = hmac.new(self._secret, f"visitor-salt:{today.isoformat()}".encode(), hashlib.sha256).digest()
        return hmac.new(salt, f"{network}\n{agent}".encode(), hashlib.sha256).hexdigest()[:32]

    def first_visit(self, tenant_id: str, visitor: str, page: str) -> bool:
        """Whether this visitor was not counted for this page in the last half hour; now they are."""
        name = key("visit", tenant_id, f"{visitor}:{page}")
        try:
            with boards().client() as redis:
                return bool(redis.set(name, b"1", ex=ONCE_PER_S, nx=True))
        except RedisUnavailable:
            return self._first_visit_here(name)

    def forget_visit(self, tenant_id: str, visitor: str, page: str) -> None:
        """The visit could not be written: it may be tried again."""
        name = key("visit", tenant_id, f"{visitor}:{page}")
        with self._lock:
            self._own.pop(name, None)
        try:
            with boards().client() as redis:
                redis.delete(name)
        except RedisUnavailable:
            pass

    def _first_visit_here(self, name: str) -> bool:
        now = time.monotonic()
        with self._lock:
            if self._own.get(name, 0.0) > now:
                return False
            self._own[name] = now + ONCE_PER_S
            self._own.move_to_end(name)
            while len(self._own) > MOST_REMEMBERED:
                self._own.popitem(last=False)
            return True


@lru_cache(maxsize=10_000)
def is_bot(agent: str) -> bool:
    """Whether a maintained list knows this agent as a robot. No agent at all is one too."""
    import crawleruseragents  # reads its list when it is imported

    return not agent.strip() or bool(crawleruseragents.is_crawler(agent, case_sensitive=False))
