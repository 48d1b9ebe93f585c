"""`plaudit up`, step by step: servers, schema, processes, ready line."""

import json
import os
import sys
from pathlib import Path

import click

from app import datadir, supervisor
from app.datadir import Addresses
from app.embedded import EmbeddedServers
from app.settings import Settings
from app.supervisor import Supervisor

HEALTH_HOST = "127.0.0.1"


def run(data_dir: Path, *, demo: bool, traffic: bool, port: int, workers: int, as_json: bool) -> None:
    """Everything, until Ctrl-C or SIGTERM."""
    settings = Settings.from_env({**os.environ, "PLAUDIT_PORT": str(port)})
    supervisor.check_port(settings.host, settings.port, "--port N")
    live_port = _live_port(settings)
    data_dir = datadir.prepare(data_dir)
    colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    # With --json, standard output is for the ready line alone.
    out = supervisor.Printer(sys.stderr if as_json else sys.stdout, colours=colours)
    with datadir.hold(data_dir, "up") as lock:
        watch = Supervisor(env={}, out=out)
        with watch.signals():
            try:
                addresses = _start_servers(watch, settings, data_dir, lock)
                if addresses is not None:
                    _start_service(
                        watch,
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
                watch.stop_all()
                out.close()


def _live_port(settings: Settings) -> int:
    if "PLAUDIT_LIVE_PORT" in os.environ:
        supervisor.check_port(settings.host, settings.live_port, "PLAUDIT_LIVE_PORT")
        return settings.live_port
    for port in range(settings.port + 1, min(settings.port + 50, 65536)):
        if supervisor.port_is_free(settings.host, port):
            return port
    raise supervisor.UpError("No free port for the sockets: choose one with PLAUDIT_LIVE_PORT")


def _start_servers(watch: Supervisor, settings: Settings, data_dir: Path, lock: "object") -> Addresses | None:
    """The embedded servers where none are named. None when a stop was asked for meanwhile."""
    with_database, with_redis = settings.database_url is None, settings.redis_url is None
    if not with_database and not with_redis:
        return Addresses(settings.database_url or "", settings.service_database_url or "", settings.redis_url or "")
    servers = EmbeddedServers(data_dir, lock)  # type: ignore[arg-type]
    if not supervisor.start_servers(watch, servers, with_database=with_database, with_redis=with_redis):
        return None
    own = servers.addresses
    addresses = Addresses(
        database_url=own.database_url if with_database else settings.database_url or "",
        service_database_url=own.service_database_url if with_database else settings.service_database_url or "",
        redis_url=own.redis_url if with_redis else settings.redis_url or "",
    )
    datadir.publish(data_dir, "up", addresses)
    return addresses


def _start_service(
    watch: Supervisor,
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
    live_url = settings.live_url if "PLAUDIT_PUBLIC_URL" in os.environ else f"http://127.0.0.1:{live_port}"
    watch.env = supervisor.child_env(
        addresses,
        data_dir=data_dir,
        settings_env={
            "PLAUDIT_PORT": str(settings.port),
            "PLAUDIT_LIVE_PORT": str(live_port),
            "PLAUDIT_LIVE_URL": live_url,
            "PLAUDIT_SECRET_KEY": settings.secret_key or datadir.read_secrets(data_dir)["secret_key"],
            "LOG_FORMAT": settings.log_format or ("console" if sys.stdout.isatty() else "json"),
        },
        colours=sys.stdout.isatty() and "NO_COLOR" not in os.environ,
    )
    said = _prepare_database(addresses, data_dir if demo else None)
    # Processes that answer requests get the service's login only, where there is one.
    no_owner = {"DATABASE_URL": ""} if addresses.service_database_url else {}
    watch.add_command("web", "web", env=no_owner)
    watch.add_command("live", "live", env=no_owner)
    for number in range(1, workers + 1):
        watch.add_command(f"worker{number}", "worker")
    watch.add_command("cron", "cron")
    host = HEALTH_HOST if settings.host in {"0.0.0.0", "::"} else settings.host  # noqa: S104
    if watch.wait_for(
        lambda: (
            supervisor.answers(f"http://{host}:{settings.port}/health/ready")
            and supervisor.answers(f"http://{host}:{live_port}/health/live")
        )
    ):
        ready = {"ready": True, "url": settings.public_url, "live_url": live_url, **said}
        _say_ready(ready, watch.out, as_json=as_json)
        if traffic:
            where = {"URL": f"http://{host}:{settings.port}", "CLIENT_ID": said["client_id"]}
            where["CLIENT_SECRET"] = said["client_secret"]
            watch.add_command("demo", "demo-traffic", env={f"PLAUDIT_DEMO_{name}": to for name, to in where.items()})
        watch.run()


def _prepare_database(addresses: Addresses, demo_in: Path | None) -> dict[str, str]:
    """The newest schema and, if asked for, the demo tenant. Done before any child runs, and all connections closed."""
    from app import demo as demo_tenant
    from migrations.run import migrate
    from tenants import db

    db.configure(service_url=addresses.service_database_url or None, owner_url=addresses.database_url, pool_size=2)
    try:
        migrate(db.owner_engine(), service_url=addresses.service_database_url or None)
        return demo_tenant.ensure(demo_in) if demo_in else {}
    finally:
        db.dispose()


def _say_ready(ready: dict[str, object], out: supervisor.Printer, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(ready))
        return
    out.plain(f"ready {ready['url']} (sockets {ready['live_url']}) · Ctrl-C stops everything")
    for name in ("tenant", "client_id", "client_secret", "admin_username", "admin_password"):
        if name in ready:
            out.plain(f"  {name:<15} {ready[name]}")
