"""How far a backlog is drained: after which rows of the outbox a tenant's next step begins to read.

PostgreSQL's index keeps deleted rows while any transaction may still see them. A step that began with the first row
would read past all that were deleted since the oldest of these began, and a backlog would cost its square. So in a
backlog a process reads on from where its last step ended, and looks for nothing before.

Transactions do not commit in the order of their ids, and another process may have died with its intents. So once there
is no backlog any more, and every few seconds, a step reads from the start: what was left out waits no longer.
"""

import time
from collections.abc import Callable, Mapping

from analytics.boards.kept import Kept
from analytics.outbox import Kind

MAX_TENANTS = 1_000
# Like the sweep, which finds what a lost wake-up has left.
FROM_START_EVERY_S = 5.0


class Drained:
    """The id of the last row of each kind that needs not be read again, by tenant."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._fronts: Kept[str, tuple[Mapping[Kind, int], float]] = Kept(
            MAX_TENANTS, for_s=FROM_START_EVERY_S, clock=clock
        )

    def fronts(self, tenant_id: str) -> Mapping[Kind, int]:
        """Empty: read from the start."""
        kept = self._fronts.get(tenant_id)
        return kept[0] if kept is not None else {}

    def note(self, tenant_id: str, fronts: Mapping[Kind, int], *, from_start: bool) -> None:
        """A step is committed. `fronts`: after what the next reads; empty without a backlog. `from_start`: it did."""
        kept = self._fronts.get(tenant_id)
        if not fronts or (kept is None and not from_start):
            self._fronts.drop([tenant_id])
            return
        until = self._clock() + FROM_START_EVERY_S if from_start or kept is None else kept[1]
        self._fronts.keep(tenant_id, (fronts, until), for_s=until - self._clock())
