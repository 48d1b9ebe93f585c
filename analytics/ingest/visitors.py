"""Visitors of pages with the beacon: which are the same, which are robots, and which were counted already.

A visitor is a hash of network and agent with a salt that changes every day: neither is stored, and the hash is useless
the day after. A visitor's views of a page are counted once in half an hour. Redis keeps the visits of all processes;
without it each process keeps its own, up to a bound.
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
# The part of a User-Agent header that is compared with the list of robots and distinguishes visitors.
MAX_AGENT_CHARS = 512
MAX_VISITS = 100_000


class Visitors:
    def __init__(self, *, secret_key: str) -> None:
        self._secret = secret_key.encode()
        self._lock = threading.Lock()
        self._visits: OrderedDict[str, float] = OrderedDict()

    def identify(self, *, network: str, agent: str, today: date) -> str:
        salt = hmac.new(self._secret, f"visitor-salt:{today.isoformat()}".encode(), hashlib.sha256).digest()
        return hmac.new(salt, f"{network}\n{agent}".encode(), hashlib.sha256).hexdigest()[:32]

    def is_first_visit(self, tenant_id: str, visitor: str, page: str) -> bool:
        """Whether this visitor was not counted for this page in the last half hour. From now on they are."""
        name = key("visit", tenant_id, f"{visitor}:{page}")
        try:
            with boards().client() as redis:
                return bool(redis.set(name, b"1", ex=ONCE_PER_S, nx=True))
        except RedisUnavailable:
            return self._is_first_in_process(name)

    def forget_visit(self, tenant_id: str, visitor: str, page: str) -> None:
        """The visit could not be written: let it be sent again."""
        name = key("visit", tenant_id, f"{visitor}:{page}")
        with self._lock:
            self._visits.pop(name, None)
        try:
            with boards().client() as redis:
                redis.delete(name)
        except RedisUnavailable:
            pass

    def _is_first_in_process(self, name: str) -> bool:
        now = time.monotonic()
        with self._lock:
            if self._visits.get(name, 0.0) > now:
                return False
            self._visits[name] = now + ONCE_PER_S
            self._visits.move_to_end(name)
            while len(self._visits) > MAX_VISITS:
                self._visits.popitem(last=False)
            return True


@lru_cache(maxsize=10_000)
def is_bot(agent: str) -> bool:
    """Whether a maintained list has this agent as a robot. An empty agent is a robot too."""
    import crawleruseragents  # reads its list when it is imported

    return not agent.strip() or bool(crawleruseragents.is_crawler(agent, case_sensitive=False))
