"""Memory that neither a tenant nor a caller can fill alone: the oldest entries of whoever has too many are dropped."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
# The groups that an entry counts in, and how many entries each of them may have.
Groups = tuple[tuple[tuple[str, ...], int], ...]


class FairCache(Generic[Key, Value]):
    """Entries by key, counted in the groups that `groups_of` says. Reading takes no lock."""

    def __init__(self, groups_of: Callable[[Key, Value], Groups]) -> None:
        self._groups_of = groups_of
        self._lock = threading.Lock()
        self._values: dict[Key, Value] = {}
        # The keys of each group in the order of their arrival.
        self._arrivals: dict[tuple[str, ...], OrderedDict[Key, None]] = {}
        self.get: Callable[[Key], Value | None] = self._values.get

    def put(self, key: Key, value: Value) -> None:
        """Keep this entry as the newest of its groups, in the place of an earlier one with this key."""
        with self._lock:
            self._forget(key)
            self._values[key] = value
            for group, limit in self._groups_of(key, value):
                arrivals = self._arrivals.setdefault(group, OrderedDict())
                arrivals[key] = None
                if len(arrivals) > limit:
                    self._forget(next(iter(arrivals)))

    def forget(self, key: Key) -> None:
        with self._lock:
            self._forget(key)

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
            self._arrivals.clear()

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)

    def _forget(self, key: Key) -> None:
        value = self._values.pop(key, None)
        if value is None:
            return
        for group, _ in self._groups_of(key, value):
            arrivals = self._arrivals.get(group)
            if arrivals is not None:
                arrivals.pop(key, None)
                if not arrivals:
                    del self._arrivals[group]
