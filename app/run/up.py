"""`plaudit up`, step by step: servers, schema, processes, ready line."""

import json
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import click

from app.run import data_folder, environment, forked, supervisor
from app.run.data_folder import Addresses
from app.run.local_servers import LocalServers
from app.run.readiness import Readiness
from app.run.supervisor import Supervisor
from app.settings import Settings, socket_address

HEALTH_HOST = "127.0.0.1"
DEMO_WITHIN_S = 300.0
# On a terminal the ready lines are printed once no other line was written for QUIET_S, so that they stay visible.
QUIET_S = 1.0
QUIET_WITHIN_S = 10.0


def run(data_dir: Path, *, demo: bool, traffic: bool, port: int, workers: int, as_json: bool) -> None:
    """Run everything until Ctrl-C or SIGTERM."""
    settings = Settings.from_env(environment.inherited(PLAUDIT_PORT=str(port)))
    supervisor.check_port(settings.host, settings.port, '--port N (make up ARGS="--port N")')
    live_port = _live_port(settings)
    data_dir = data_folder.prepare(data_dir)
    colours = sys.stdout.isatty() and settings.allows_colours
    # With --json, standard output is for the ready line alone.
    out = supervisor.Printer(sys.stderr if as_json else sys.stdout, colours=colours)
    with data_folder.lock_servers(data_dir, "up") as lock:
        processes = Supervisor(env={}, out=out)
        with processes.signals():
            try:
                environment.keep_metrics_in(data_dir)
                is_new = data_folder.is_new(data_dir)
                addresses, are_up = _start_servers(processes, settings, data_dir, lock)
                processes.env = environment.for_children(
                    settings, addresses, data_dir=data_dir, live_port=live_port, is_terminal=sys.stdout.isatty()
                )
                if not is_new:  # else it would find no database yet, and say so
                    _start_live(processes, settings, addresses)
                forked.load_libraries()
                if processes.wait_for(are_up):
                    if settings.database_url is None or settings.redis_url is None:  # commands use our servers
                        data_folder.write_state(data_dir, "up", addresses)
                    _start_service(
                        processes,
                        settings,
                        addresses,
                        data_dir,
                        live_port=live_port,
                        workers=workers,
                        demo=demo,
                        traffic=traffic,
                        as_json=as_json,
                    )
            finally:
                processes.stop_all()
                out.close()


def _live_port(settings: Settings) -> int:
    if settings.has_live_port:
        supervisor.check_port(settings.host, settings.live_port, "PLAUDIT_LIVE_PORT")
        return settings.live_port
    for port in range(settings.port + 1, min(settings.port + 50, 65536)):
        if supervisor.port_is_free(settings.host, port):
            return port
    raise supervisor.UpError("No free port for the sockets: choose one with PLAUDIT_LIVE_PORT")


def _start_servers(
    processes: Supervisor, settings: Settings, data_dir: Path, lock: IO[str]
) -> tuple[Addresses, Callable[[], bool]]:
    """Start local servers where the environment names none. Returns the addresses, and whether they are up."""
    with_database, with_redis = settings.database_url is None, settings.redis_url is None
    named = Addresses(settings.database_url or "", settings.service_database_url or "", settings.redis_url or "")
    if not with_database and not with_redis:
        return named, lambda: True
    servers = LocalServers(data_dir, lock)
    are_up = supervisor.start_servers(processes, servers, with_database=with_database, with_redis=with_redis)
    own = servers.addresses
    addresses = Addresses(
        database_url=own.database_url if with_database else named.database_url,
        service_database_url=own.service_database_url if with_database else named.service_database_url,
        redis_url=own.redis_url if with_redis else named.redis_url,
    )
    return addresses, are_up


def _start_service(
    processes: Supervisor,
    settings: Settings,
    addresses: Addresses,
    data_dir: Path,
    *,
    live_port: int,
    workers: int,
    demo: bool,
    traffic: bool,
    as_json: bool,
) -> None:
    demo_credentials = _prepare_database(settings, addresses, data_dir if demo else None)
    _start_live(processes, settings, addresses)
    own_secret = secrets.token_urlsafe(32)
    demo_secret = {"PLAUDIT_DEMO_SECRET": own_secret}
    web_env = _without_owner_login(addresses) | demo_secret
    if settings.database_url is None:
        processes.add_fork("web", "app.cli", "web", env=web_env, drain_s=settings.drain_s)
    else:  # a fork would have this process's environment in /proc, and so the owner's login
        processes.add_command("web", "web", env=web_env, drain_s=settings.drain_s)
    host = HEALTH_HOST if settings.host in {"0.0.0.0", "::"} else settings.host  # noqa: S104
    readiness = Readiness(
        f"http://{host}:{settings.port}/health/ready",
        f"http://{host}:{live_port}/health/live",
        headers={"X-Plaudit-Demo": own_secret},
    )
    if processes.wait_for(readiness.is_ready, why_not=lambda: readiness.problems):
        # Not before: they have work at once, and would take the processors from those that are waited for.
        for number in range(1, workers + 1):
            processes.add_fork(f"worker{number}", "workers", "worker")
        processes.add_fork("cron", "workers", "cron")
        if traffic:
            where = {"URL": f"http://{host}:{settings.port}", "CLIENT_ID": demo_credentials["client_id"]}
            where["CLIENT_SECRET"] = demo_credentials["client_secret"]
            env = {f"PLAUDIT_DEMO_{name}": value for name, value in where.items()} | demo_secret
            env |= {"DATABASE_URL": "", "PLAUDIT_DIRECT_DATABASE_URL": "", "PLAUDIT_SERVICE_DATABASE_URL": ""}
            env |= {"REDIS_URL": "", "PLAUDIT_SECRET_KEY": ""}
            _prepare_demo(processes, env, ready=data_dir / "demo-ready")
        if sys.stdout.isatty() and not as_json:
            processes.wait_at_most(QUIET_WITHIN_S, lambda: processes.out.has_been_quiet_for(QUIET_S))
        if not processes.is_stopping:
            live_url = environment.live_url(settings, live_port)
            ready = {"ready": True, "url": settings.public_url, "live_url": live_url, **demo_credentials}
            ready["listens_on"] = socket_address(settings.host, settings.port)
            ready["live_listens_on"] = socket_address(settings.host, live_port)
            _print_ready(ready, processes.out, as_json=as_json)
        processes.run()


def _start_live(processes: Supervisor, settings: Settings, addresses: Addresses) -> None:
    """Unless it runs. As early as it can: it loads its libraries itself, while the servers start and we load others."""
    if not any(child.name == "live" for child in processes.children):
        processes.add_command("live", "live", env=_without_owner_login(addresses), drain_s=settings.drain_s)


def _without_owner_login(addresses: Addresses) -> dict[str, str]:
    """Processes that answer requests get the service's login only, where there is one."""
    return {"DATABASE_URL": "", "PLAUDIT_DIRECT_DATABASE_URL": ""} if addresses.service_database_url else {}


def _prepare_demo(processes: Supervisor, env: dict[str, str], *, ready: Path) -> None:
    """Start the demo's traffic, and wait for the file that it writes when everything is prepared."""
    ready.unlink(missing_ok=True)
    processes.add_fork("demo", "app.cli", "demo-traffic", env=env)
    if not processes.wait_at_most(DEMO_WITHIN_S, ready.exists) and not processes.is_stopping:
        processes.out.line("demo", "still creating its history; the boards fill up meanwhile")


def _prepare_database(settings: Settings, addresses: Addresses, demo_in: Path | None) -> dict[str, str]:
    """Migrate and, if requested, create the demo tenant, before any child runs; closes all connections."""
    from app.run import demo as demo_tenant
    from app.run import direct_address
    from migrations.run import migrate
    from tenants import db, redis

    if refusal := redis.refusal(REDIS_URL=settings.redis_url, PLAUDIT_QUEUE_REDIS_URL=settings.queue_redis_url):
        raise supervisor.UpError(refusal)
    direct_address.require_same(settings)
    service_url = addresses.service_database_url or None
    owner_url = settings.direct_database_url or addresses.database_url
    db.configure(service_url=service_url, owner_url=owner_url, pool_size=2)
    try:
        migrate(db.owner_engine(), service_url=service_url)
        return demo_tenant.ensure(demo_in) if demo_in else {}
    finally:
        db.dispose()


def _print_ready(ready: dict[str, object], out: supervisor.Printer, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(ready))
        return
    out.plain(f"ready {ready['url']} (sockets {ready['live_url']}) · Ctrl-C stops everything")
    if ready["url"] != f"http://{ready['listens_on']}":  # a proxy's address, or every address of the machine
        out.plain(f"  listens on {ready['listens_on']}, sockets {ready['live_listens_on']}")
    for name in ("tenant", "client_id", "client_secret", "admin_username", "admin_password"):
        if name in ready:
            out.plain(f"  {name:<15} {ready[name]}")
