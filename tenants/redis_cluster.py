"""A Redis Cluster: commands go to the primary that has their key's slot, and each node has its own circuit breaker.

Not redis-py's own cluster client: that one connects when it is made, sleeps and asks again while a node is away, sends
what a pipeline could not one by one, and has no eval in pipelines. A request must not wait for a node that is away,
and the boards of other nodes must still be read. So each node is a server like any other here (`Guarded`), and what is
sent goes to all nodes concerned before the first answer is read.

Which node has which slots is asked at the first use, when a node says that a slot has moved, and while a node is away:
every second, until the cluster has promoted one of its replicas, or it is back.
"""

import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from redis import Redis
from redis.client import Pipeline
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AskError, MovedError, RedisError, TryAgainError

from tenants.redis_addresses import ClusterAddress
from tenants.redis_server import (
    CONNECT_TIMEOUT_S,
    PROBE_EVERY_S,
    TIMEOUT_S,
    Command,
    Guarded,
    Outage,
    RedisUnavailable,
    make_client,
)
from tenants.waiting import require_may_wait

# A slot that moves twice while it is asked for is unavailable for a moment.
MAX_REDIRECTIONS = 3
# What has no key: on all primaries, on any, or refused, since what it means on a cluster is the caller's to say.
ON_ALL = {"PING", "FLUSHDB", "FLUSHALL"}
ON_ANY = {"PUBLISH"}
REFUSED = {"CLIENT", "CONFIG", "DBSIZE", "ECHO", "INFO", "KEYS", "PUBSUB", "RANDOMKEY", "SCAN", "SCRIPT", "TIME"}

# By number, in the order in which they were asked.
Numbered = Mapping[int, Any]


class Nodes:
    """The nodes of a cluster, as far as they are known: which has which slots, and asking them."""

    def __init__(self, address: ClusterAddress, *, name: str, outage: Outage, timeout_s: float) -> None:
        self._address = address
        self._name = name
        self._seeds = ",".join(f"{host}:{port}" for host, port in address.nodes)
        self._outage = outage
        self._timeout_s = timeout_s
        self._known: dict[tuple[str, int], Guarded] = {}
        self._primaries: list[Guarded] = []
        # By slot; empty: not known yet.
        self._owners: list[Guarded | None] = []
        self.has_all_slots = False
        self._incomplete_since: float | None = None
        self.replicas = 0
        self._updating = threading.Lock()
        self._tried_at = self._updated_at = 0.0
        self._update_due_at = 0.0
        self.pool = self._node(*address.nodes[0]).redis.connection_pool

    def ask(self, commands: Sequence[Command]) -> list[Any]:
        """The answers in order, in one round trip to each node; RedisUnavailable in place of what got none."""
        require_may_wait()
        answers = self._ask_owners(dict(enumerate(commands)))
        for _ in range(MAX_REDIRECTIONS):
            redirected = {number: answer for number, answer in answers.items() if isinstance(answer, AskError)}
            if not redirected:
                break
            for error in redirected.values():
                self._note_redirection(error)
            moved = {n: commands[n] for n, error in redirected.items() if isinstance(error, MovedError)}
            answers |= self._ask_owners(moved)
            for number, error in redirected.items():
                if number not in moved:
                    answers[number] = self._ask_once_elsewhere(error, commands[number])
        return [
            RedisUnavailable() if isinstance(answer, AskError | TryAgainError) else answer
            for _, answer in sorted(answers.items())
        ]

    def ask_primaries(self, command: Command, *, updated: bool = False) -> list[Any]:
        """The answer of each primary, or RedisUnavailable in its place. `updated`: of those that are primaries now."""
        require_may_wait()
        primaries = self.primaries(updated=updated)
        answers = self._ask_nodes({node: {number: command} for number, node in enumerate(primaries)})
        if not self.has_all_slots:
            return [RedisUnavailable(), *answers.values()]
        return list(answers.values())

    def primaries(self, *, updated: bool = False) -> list[Guarded]:
        """As far as they are known. While one is away it is found out every second whether it was replaced."""
        self._require_owners()
        if updated:
            if not self.update():
                raise RedisUnavailable
        elif self._is_update_due() and (not self.has_all_slots or any(node.is_down for node in self._primaries)):
            self.update()
        return self._primaries

    @property
    def incomplete_s(self) -> float:
        """For how long a slot or a primary has been away, while others are there."""
        nodes_s = max((node.away_s for node in self.primaries()), default=0.0)
        since = self._incomplete_since
        return nodes_s if since is None else max(nodes_s, time.monotonic() - since)

    def update(self) -> bool:
        """Ask a node which of them has which slots; False: none answers. One caller does, the others wait for it."""
        wanted_at = time.monotonic()
        if not self._updating.acquire(timeout=CONNECT_TIMEOUT_S + TIMEOUT_S):
            return False
        try:
            if self._tried_at < wanted_at:
                self._update()
                self._tried_at = time.monotonic()
            return self._updated_at >= wanted_at
        finally:
            self._updating.release()

    def _update(self) -> None:
        began = time.monotonic()
        self._update_due_at = began + PROBE_EVERY_S
        candidates = [self._node(*where) for where in {*self._known, *self._address.nodes}]
        random.shuffle(candidates)
        error: Exception = RedisUnavailable()
        for node in sorted(candidates, key=lambda node: node.is_down):
            # A node that hangs has cost enough time: others are asked a second later.
            if time.monotonic() - began > CONNECT_TIMEOUT_S:
                break
            try:
                (slots,) = node.read(("CLUSTER", "SLOTS"))
            except RedisUnavailable as unavailable:
                cause = unavailable.__cause__
                error = cause if isinstance(cause, Exception) else error
                continue
            if slots:
                self._use(slots, node)
                if self.has_all_slots:  # otherwise another one may know more
                    return
        if not self._owners:  # otherwise the primaries log it
            self._outage.failed(self._seeds, error, client=self._name, now=time.monotonic())

    def _use(self, slots: Sequence[Any], asked: Guarded) -> None:
        """Take over what a node answered to CLUSTER SLOTS."""
        owners: list[Guarded | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        primaries: dict[tuple[str, int], Guarded] = {}
        known: set[tuple[str, int]] = set()
        for first, last, *nodes in slots:
            # Without a host it is the one that was asked.
            places = [((host or b"").decode() or _host(asked), int(port)) for host, port, *_ in nodes]
            known.update(places)
            primary = primaries[places[0]] = self._node(*places[0])
            owners[first : last + 1] = [primary] * (last + 1 - first)
        now = time.monotonic()
        self._outage.worked(self._seeds, now=now)
        for node in self._primaries:
            if node not in primaries.values():
                node.outage = _Unlogged()
                self._outage.left(node.server, now=now)
        for node in primaries.values():
            node.outage = self._outage
        self._primaries, self._owners = list(primaries.values()), owners
        self.has_all_slots = None not in owners
        if self.has_all_slots:
            self._incomplete_since = None
        elif self._incomplete_since is None:
            self._incomplete_since = now
        self.replicas = len(known) - len(primaries)
        known.update(self._address.nodes)
        self._known = {where: node for where, node in list(self._known.items()) if where in known}
        self._updated_at = now

    def _node(self, host: str, port: int) -> Guarded:
        node = self._known.get((host, port))
        if node is None:
            client = make_client(self._address.url_of(host, port), timeout_s=self._timeout_s)
            node = self._known[host, port] = Guarded(self._name, client, _Unlogged())
        return node

    def _ask_owners(self, commands: Numbered) -> dict[int, Any]:
        if not commands:
            return {}
        self._require_owners()
        by_owner = self._by_owner(commands)
        if (not self.has_all_slots or any(node.is_down for node in by_owner)) and self._is_update_due():
            if self.update():
                by_owner = self._by_owner(commands)
            else:  # it has cost enough time: what is down is not tried besides
                by_owner = {node: asked for node, asked in by_owner.items() if not node.is_down}
        answers = self._ask_nodes(by_owner)
        return {number: RedisUnavailable() for number in commands} | answers

    def _by_owner(self, commands: Numbered) -> dict[Guarded, dict[int, Any]]:
        """Without those whose slot no node has."""
        owners = self._owners
        grouped: dict[Guarded, dict[int, Any]] = {}
        for number, command in commands.items():
            owner = owners[slot_of(command)]
            if owner is not None:
                grouped.setdefault(owner, {})[number] = command
        return grouped

    def _require_owners(self) -> None:
        if self._owners:
            return
        if not (self._is_update_due() or self._updating.locked()) or not self.update():
            raise RedisUnavailable

    def _ask_nodes(self, by_node: Mapping[Guarded, Numbered]) -> dict[int, Any]:
        """Send to all nodes, then read from all. Nodes that hang cost the time of one."""
        began = time.monotonic()
        answers: dict[int, Any] = {}
        sent = []
        until: float | None = None  # not before a node has failed
        for node, commands in by_node.items():
            try:
                sent.append((node, commands, node.send(list(commands.values()))))
            except RedisUnavailable as error:
                answers |= dict.fromkeys(commands, error)
                until = time.monotonic() + self._timeout_s
            if until is not None and time.monotonic() - began > CONNECT_TIMEOUT_S:
                break
        for node, commands, on_its_way in sent:
            try:
                answers |= zip(commands, node.receive(on_its_way, until=until), strict=True)
            except RedisUnavailable as error:
                answers |= dict.fromkeys(commands, error)
                until = until or began + self._timeout_s
        unavailable = RedisUnavailable()
        return {number: answers.get(number, unavailable) for commands in by_node.values() for number in commands}

    def _note_redirection(self, error: AskError) -> None:
        if isinstance(error, MovedError) and error.host and self._owners:
            self._owners[error.slot_id] = self._node(error.host, error.port)
            if not self._is_update_due():
                return
        if isinstance(error, MovedError):
            self.update()

    def _ask_once_elsewhere(self, error: AskError, command: Command) -> Any:
        """What belongs to a slot that is being moved."""
        node = self._node(error.host, error.port)
        try:
            return node.receive(node.send([("ASKING",), command]))[1]
        except RedisUnavailable as unavailable:
            return unavailable

    def _is_update_due(self) -> bool:
        return time.monotonic() >= self._update_due_at


class ClusterClient(Redis):
    """redis-py's client, whose commands go to the nodes of their keys. RedisUnavailable instead of RedisError."""

    def __init__(self, nodes: Nodes) -> None:
        super().__init__(connection_pool=nodes.pool)  # of which only the settings are used
        self.nodes = nodes

    def execute_command(self, *args: Any, **options: Any) -> Any:
        if args[0] in ON_ALL:
            return self.on_every_primary(*args, **options)[0]
        if args[0] in ON_ANY:
            with _any_of(self.nodes.primaries()).client() as redis:
                return redis.execute_command(*args, **options)  # type: ignore[no-untyped-call]
        if args[0].partition(" ")[0] in REFUSED:
            raise ValueError(f"{args[0]} has no key: use on_every_server, or scan_iter")
        return self.parsed(args, options, self.nodes.ask([args])[0])

    def on_every_primary(self, *args: Any, **options: Any) -> list[Any]:
        return [self.parsed(args, options, answer) for answer in self.nodes.ask_primaries(args, updated=True)]

    def parsed(self, args: Sequence[Any], options: Mapping[str, Any], answer: Any) -> Any:
        """As redis-py does: what a raw answer means depends on the command."""
        if isinstance(answer, RedisUnavailable):
            raise answer
        callback = self.response_callbacks.get(args[0])  # type: ignore[no-untyped-call]
        if callback is None:
            return answer
        return callback(answer, **{name: value for name, value in options.items() if name != "keys"})

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> "ClusterPipeline":  # noqa: ARG002  as redis-py has it
        if transaction:
            raise ValueError("on a cluster nothing is atomic but a command: use a script")
        return ClusterPipeline(self)

    def register_script(self, script: Any) -> Any:
        """Sent with each call: a node that was just promoted has no scripts loaded."""
        return _Script(self, script)

    def pubsub(self, **options: Any) -> Any:
        """On any node: a cluster delivers messages to all."""
        return _any_of(self.nodes.primaries()).redis.pubsub(**options)  # type: ignore[no-untyped-call]

    def scan_iter(self, *args: Any, **options: Any) -> Iterator[Any]:
        for node in self.nodes.primaries(updated=True):
            with node.client() as redis:
                yield from redis.scan_iter(*args, **options)


class ClusterPipeline(Pipeline):
    """Commands that are sent together, to all nodes at once. Each is atomic, all of them are not."""

    def __init__(self, client: ClusterClient) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, transaction=False, shard_hint=None)
        self._client = client

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """The answers; RedisUnavailable if there are not all, or in place of those that are missing.

        What could be sent then has been executed.
        """
        commands, self.command_stack = self.command_stack, []
        answers = self._client.nodes.ask([args for args, _ in commands])
        return [
            answer
            if isinstance(answer, RedisUnavailable) and not raise_on_error
            else self._client.parsed(args, options, answer)
            for (args, options), answer in zip(commands, answers, strict=True)
        ]


class _Script:
    def __init__(self, client: ClusterClient, script: Any) -> None:
        self._client, self._script = client, script

    def __call__(self, keys: Sequence[Any] = (), args: Sequence[Any] = ()) -> Any:
        return self._client.eval(self._script, len(keys), *keys, *args)


class GuardedCluster(Guarded):
    """A cluster, to be used like a server: what has its key on a node that is away raises RedisUnavailable at once."""

    redis: ClusterClient

    @classmethod
    def at(cls, address: ClusterAddress, *, name: str, outage: Outage, timeout_s: float) -> "GuardedCluster":
        nodes = Nodes(address, name=name, outage=outage, timeout_s=timeout_s)
        return cls(name, ClusterClient(nodes), outage)

    @contextmanager
    def client(self) -> Iterator["Redis"]:
        require_may_wait()
        try:
            yield self.redis
        except (RedisError, OSError) as error:
            raise RedisUnavailable from error

    def read(self, *commands: Command) -> list[Any]:
        """As from a server; but None in place of an answer whose node is away, if others have answered."""
        answers = self.redis.nodes.ask(commands)
        missing = [answer for answer in answers if isinstance(answer, RedisUnavailable)]
        if not missing:
            return answers
        if len(missing) == len(answers):
            raise missing[0]
        return [None if isinstance(answer, RedisUnavailable) else answer for answer in answers]

    @property
    def partly_away_s(self) -> float:
        return self.redis.nodes.incomplete_s

    def is_up(self) -> bool:
        """Whether all primaries answer, and have all slots."""
        try:
            answers = self.redis.nodes.ask_primaries(("PING",))
        except RedisUnavailable:
            return False
        return not any(isinstance(answer, RedisUnavailable) for answer in answers)


class _Unlogged(Outage):
    """Of a node that is no primary: whether it answers matters to nobody."""

    def failed(self, server: str, error: Exception, *, client: str, now: float) -> None:
        pass


def slot_of(command: Command) -> int:
    """The slot of a command's key; a script's keys must all be in the slot of its first."""
    key = command[3] if command[0] == "EVAL" else command[1]
    return key_slot(key.encode() if isinstance(key, str) else key)


def _host(node: Guarded) -> str:
    return str(node.redis.connection_pool.connection_kwargs["host"])


def _any_of(nodes: Sequence[Guarded]) -> Guarded:
    return random.choice([node for node in nodes if not node.is_down] or nodes)  # noqa: S311  which one does not matter
