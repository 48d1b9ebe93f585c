"""What `plaudit restore` ends again: credentials that were revoked or changed after the backup was taken.

A backup has the sessions, secrets, roles and passwords of its moment. Where the database that a restore replaces is
still there, it knows what happened to them since. The script of the restore copies that into temporary tables before it
drops anything (`copying`), and applies it to the restored rows in the same transaction (`applying`), so no process ever
sees a revived credential. What the replaced database does not know, because there was none or it had no such tenant, is
counted instead (`VALID`), and `--revoke-all` revokes what can be issued again.

The backup may have an older schema, and the replaced database another one, so the rules are data: a rule is skipped
where one of the two has no such table or column. Two rows are the same if their primary keys are.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID

from analytics.redaction import PERSONAL


class Phase(StrEnum):
    AGAIN = "again"
    REVOKE = "revoke"
    VALID = "valid"


class Action(StrEnum):
    CHANGE = "change"  # write the newer row's columns into the restored row
    END = "end"  # delete restored rows that the replaced database no longer has, of tenants that it has
    ADD = "add"  # insert the newer rows that the backup does not have
    SET = "set"
    DELETE = "delete"
    COUNT = "count"


@dataclass(frozen=True)
class Rule:
    """One change of one table. `when` is SQL about the rows `restored` and `newer`."""

    what: str
    table: str
    action: Action
    # Both databases must have these; a change writes them.
    columns: tuple[str, ...]
    when: str = "true"
    # Written too, if both have them.
    also: tuple[str, ...] = ()
    # Set to their defaults.
    reset: tuple[str, ...] = ()
    # For `Action.SET`.
    assignments: str = ""


@dataclass(frozen=True)
class Erased:
    """A user whom the replaced database had erased. Their row is blank again; the rest has to be erased again."""

    tenant_id: str
    user_id: UUID
    external_id: str | None


@dataclass(frozen=True)
class Restored:
    """What a restore has revoked again, and what it could not decide. Counts by their words; zeros are left out."""

    applied_again: Mapping[str, int] = field(default_factory=dict)
    revoked: Mapping[str, int] = field(default_factory=dict)
    valid_again: Mapping[str, int] = field(default_factory=dict)
    # Tenants that the replaced database, which had others, did not have or had deleted.
    tenants_back: tuple[str, ...] = ()
    erased: tuple[Erased, ...] = ()


_IS_LIVE = "restored.revoked_at IS NULL"
_RUNS = "restored.revoked_at IS NULL AND COALESCE(restored.expires_at > now(), true)"
_REVOKED = "restored.revoked_at IS NULL AND newer.revoked_at IS NOT NULL"
# The later of two states of a user. A second restore may bring a backup that is newer than what it replaces.
_LATER = "newer.updated_at >= restored.updated_at"
_SAME_HISTORY = "EXISTS (SELECT FROM pg_temp.known_tenants)"
# Clients and keys are only deleted with their tenant, so one that the replaced database does not have was created in
# another history, and stays. Rows of sessions, resets and static tokens are deleted when they have ended.
AGAIN = (
    Rule(
        "users erased",
        "users",
        Action.CHANGE,
        ("erased_at", "updated_at"),
        when="newer.erased_at IS NOT NULL AND restored.erased_at IS NULL",
        reset=(*PERSONAL, "segments", "profile_changed_at", "email_verified", "role", "suspended_until"),
    ),
    Rule(
        "passwords changed",
        "users",
        Action.CHANGE,
        ("password_hash", "updated_at"),
        when=f"newer.password_hash IS DISTINCT FROM restored.password_hash AND {_LATER}",
        also=("must_change_password",),
    ),
    Rule(
        "roles changed",
        "users",
        Action.CHANGE,
        ("role", "updated_at"),
        when=f"newer.role <> restored.role AND {_LATER}",
    ),
    Rule(
        "suspensions changed",
        "users",
        Action.CHANGE,
        ("suspended_at", "updated_at"),
        when=f"newer.suspended_at IS DISTINCT FROM restored.suspended_at AND {_LATER}",
        also=("suspended_until",),
    ),
    Rule(
        "ends of suspensions changed",
        "users",
        Action.CHANGE,
        ("suspended_until", "updated_at"),
        when=f"newer.suspended_until IS DISTINCT FROM restored.suspended_until AND {_LATER}",
    ),
    Rule(
        "rights to private pages changed",
        "users",
        Action.CHANGE,
        ("sees_private", "updated_at"),
        when=f"newer.sees_private <> restored.sees_private AND {_LATER}",
    ),
    Rule("clients revoked", "oauth_clients", Action.CHANGE, ("revoked_at",), when=_REVOKED),
    Rule(
        "client secrets rotated",
        "oauth_clients",
        Action.CHANGE,
        ("secret_hash", "old_secret_hash", "old_secret_expires_at"),
        # The old secret expires a fixed time after the rotation, so the later end is the later rotation.
        when="""
            newer.secret_hash <> restored.secret_hash AND COALESCE(newer.old_secret_expires_at, '-infinity')
                >= COALESCE(restored.old_secret_expires_at, '-infinity')
        """,
    ),
    Rule("publishable keys revoked", "publishable_keys", Action.CHANGE, ("revoked_at",), when=_REVOKED),
    Rule(
        "signing secrets of keys changed",
        "publishable_keys",
        Action.CHANGE,
        ("reader_salt",),
        when="newer.reader_salt NOT IN ('', restored.reader_salt)",
    ),
    Rule(
        "access tokens revoked",
        "revoked_tokens",
        Action.ADD,
        ("tenant_id", "jti", "expires_at"),
        when="newer.expires_at > now()",
    ),
    Rule("static tokens revoked", "static_tokens", Action.CHANGE, ("revoked_at",), when=_REVOKED),
    Rule("static tokens revoked", "static_tokens", Action.END, ("revoked_at", "expires_at"), when=_RUNS),
    Rule("sessions ended", "sessions", Action.CHANGE, ("revoked_at",), when=_REVOKED),
    Rule("sessions ended", "sessions", Action.END, ("revoked_at", "expires_at"), when=_RUNS),
    Rule(
        "refresh tokens replaced",
        "sessions",
        Action.CHANGE,
        ("refresh_hash", "last_used_at", "expires_at"),
        when="newer.refresh_hash <> restored.refresh_hash AND newer.last_used_at >= restored.last_used_at",
    ),
    Rule(
        "password resets used",
        "password_resets",
        Action.CHANGE,
        ("used_at",),
        when="restored.used_at IS NULL AND newer.used_at IS NOT NULL",
    ),
    Rule("password resets withdrawn", "password_resets", Action.END, ("used_at",), when="restored.used_at IS NULL"),
    # A key that was retired because somebody has a copy must not sign again.
    Rule(
        "signing keys changed",
        "signing_keys",
        Action.CHANGE,
        ("retires_at",),
        when=f"newer.retires_at IS DISTINCT FROM restored.retires_at AND {_SAME_HISTORY}",
    ),
    Rule("signing keys changed", "signing_keys", Action.END, ("retires_at",), when=_SAME_HISTORY),
    Rule(
        "signing keys changed",
        "signing_keys",
        Action.ADD,
        ("kid", "private_key", "public_jwk", "created_at", "activates_at", "retires_at"),
        when=_SAME_HISTORY,
    ),
)
# For --revoke-all: what its owners can get again without the operator knowing a password. No hash is equal to 'none'.
REVOKE_ALL = (
    Rule(
        "sessions", "sessions", Action.SET, ("revoked_at", "expires_at"), assignments="revoked_at = now()", when=_RUNS
    ),
    Rule(
        "client secrets",
        "oauth_clients",
        Action.SET,
        ("revoked_at", "secret_hash", "old_secret_hash", "old_secret_expires_at"),
        assignments="secret_hash = 'none', old_secret_hash = NULL, old_secret_expires_at = NULL",
        when=_IS_LIVE,
    ),
    Rule(
        "static tokens",
        "static_tokens",
        Action.SET,
        ("revoked_at", "expires_at"),
        assignments="revoked_at = now()",
        when=_RUNS,
    ),
    Rule("password resets", "password_resets", Action.DELETE, ("used_at",), when="restored.used_at IS NULL"),
    # Without its key no access token is valid; the service creates a new one.
    Rule("signing keys", "signing_keys", Action.DELETE, ("retires_at",)),
)
# What is valid in the restored database and may have been revoked since, as far as nobody knows.
VALID = (
    Rule("sessions", "sessions", Action.COUNT, ("revoked_at", "expires_at"), when=_RUNS),
    Rule(
        "client secrets",
        "oauth_clients",
        Action.COUNT,
        ("revoked_at", "secret_hash"),
        when="restored.revoked_at IS NULL AND restored.secret_hash <> 'none'",
    ),
    Rule("static tokens", "static_tokens", Action.COUNT, ("revoked_at", "expires_at"), when=_RUNS),
    Rule(
        "password resets",
        "password_resets",
        Action.COUNT,
        ("used_at", "expires_at"),
        when="restored.used_at IS NULL AND restored.expires_at > now()",
    ),
    Rule("publishable keys", "publishable_keys", Action.COUNT, ("revoked_at",), when=_IS_LIVE),
    Rule("passwords", "users", Action.COUNT, ("password_hash",), when="restored.password_hash IS NOT NULL"),
    Rule("admins", "users", Action.COUNT, ("role",), when="restored.role = 'admin'"),
)
_TENANT = ("id", "created_at", "deleted_at")


def copying() -> str:
    """The script before anything is dropped: lock what the rules need of the database as it is, and copy it."""
    columns: dict[str, list[str]] = {"tenants": [*_TENANT]}
    for rule in AGAIN:
        columns.setdefault(rule.table, []).extend((*rule.columns, *rule.also))
    wanted = [{"tbl": table, "columns": sorted({*of_table})} for table, of_table in columns.items()]
    return f"CREATE TEMP TABLE copied ON COMMIT DROP AS {_records(wanted, _COPIED)};\n{_COPY}"


def applying(*, revoke_all: bool) -> str:
    """The script after the backup's own. Its last line of output is what `parse` reads."""
    phases = {Phase.AGAIN: AGAIN, Phase.REVOKE: REVOKE_ALL if revoke_all else (), Phase.VALID: VALID}
    rules = [
        {**asdict(rule), "tbl": rule.table, "condition": rule.when, "phase": phase}
        for phase, of in phases.items()
        for rule in of
    ]
    placed = [{**rule, "place": place} for place, rule in enumerate(rules)]
    return f"CREATE TEMP TABLE rules ON COMMIT DROP AS {_records(placed, _RULES)};\n{_APPLY}{_REPORT}"


def parse(output: str) -> Restored:
    """What the script of `applying` printed last."""
    said = json.loads(output.strip().splitlines()[-1])
    counts: dict[str, dict[str, int]] = {phase: {} for phase in Phase}
    for phase, what, rows in said["counts"]:
        counts[phase][what] = rows
    return Restored(
        counts[Phase.AGAIN],
        counts[Phase.REVOKE],
        counts[Phase.VALID],
        tuple(said["tenants_back"]),
        tuple(Erased(tenant, UUID(user), external) for tenant, user, external in said["erased"]),
    )


def _records(rows: Iterable[Mapping[str, Any]], columns: str) -> str:
    """A query for these rows. psql's scripts have no parameters."""
    quoted = json.dumps([*rows]).replace("'", "''")
    return f"SELECT * FROM jsonb_to_recordset('{quoted}') AS r({columns})"  # noqa: S608  the rules above


_COPIED = "tbl text, columns text[]"
_RULES = """place int, phase text, what text, tbl text, action text, columns text[], also text[], reset text[],
            assignments text, condition text"""
# All tables are locked before the first is copied: a revocation that is committed must be in its copy.
_COPY = """
DO $$ DECLARE _table record;
BEGIN
    CREATE TEMP TABLE columns_of ON COMMIT DROP AS
        SELECT c.tbl, quote_ident(a.attname) AS name FROM pg_temp.copied c
        JOIN pg_attribute a ON a.attrelid = to_regclass(format('public.%I', c.tbl)) AND NOT a.attisdropped
        WHERE to_regclass('public.alembic_version') IS NOT NULL AND a.attnum > 0
          AND (a.attname = ANY (c.columns) OR EXISTS (
              SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisprimary AND a.attnum = ANY (i.indkey)));
    FOR _table IN SELECT tbl FROM pg_temp.columns_of GROUP BY tbl ORDER BY tbl <> 'tenants', tbl <> 'users', tbl LOOP
        EXECUTE format('LOCK TABLE public.%I IN ACCESS EXCLUSIVE MODE', _table.tbl);
    END LOOP;
    FOR _table IN SELECT tbl, string_agg(name, ', ') AS names FROM pg_temp.columns_of GROUP BY tbl LOOP
        EXECUTE format('CREATE TEMP TABLE %I ON COMMIT DROP AS SELECT %s FROM public.%I',
                       'newer_' || _table.tbl, _table.names, _table.tbl);
        EXECUTE format('ANALYZE pg_temp.%I', 'newer_' || _table.tbl);
    END LOOP;
END $$;
"""
# The owner sees all rows by a policy of its own, which the settings of pg_dump's scripts do not allow.
_APPLY = """
SET LOCAL row_security = on;
CREATE TEMP TABLE counts (phase text, what text, done bigint) ON COMMIT DROP;
CREATE TEMP TABLE known_tenants (id text PRIMARY KEY) ON COMMIT DROP;
CREATE TEMP TABLE tenants_back (id text) ON COMMIT DROP;
CREATE TEMP TABLE erased (tenant_id text, user_id uuid, external_id text) ON COMMIT DROP;
DO $$ DECLARE
    _rule record;
    _restored regclass;
    _newer regclass;
    _keys text[];
    _of_restored text[];
    _of_newer text[];
    _same text;
    _known text;
    _set text;
    _done bigint;
BEGIN
    IF to_regclass('pg_temp.newer_tenants') IS NOT NULL THEN
        INSERT INTO pg_temp.known_tenants
            SELECT t.id FROM public.tenants t JOIN pg_temp.newer_tenants n ON n.id = t.id
            -- A tenant that was deleted and created again under the same name is another one.
            WHERE n.created_at = t.created_at AND n.deleted_at IS NULL;
        INSERT INTO pg_temp.tenants_back
            SELECT t.id FROM public.tenants t
            WHERE t.deleted_at IS NULL AND t.id NOT IN (SELECT id FROM pg_temp.known_tenants)
              AND EXISTS (SELECT FROM pg_temp.newer_tenants);
    END IF;
    FOR _rule IN SELECT * FROM pg_temp.rules ORDER BY place LOOP
        _restored := to_regclass(format('public.%I', _rule.tbl));
        _newer := to_regclass(format('pg_temp.%I', 'newer_' || _rule.tbl));
        _of_restored := ARRAY(SELECT attname FROM pg_attribute
                              WHERE attrelid = _restored AND attnum > 0 AND NOT attisdropped);
        _of_newer := ARRAY(SELECT attname FROM pg_attribute
                           WHERE attrelid = _newer AND attnum > 0 AND NOT attisdropped);
        _keys := ARRAY(SELECT a.attname FROM pg_index i
                       JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
                       WHERE i.indrelid = _restored AND i.indisprimary);
        CONTINUE WHEN _restored IS NULL OR NOT _of_restored @> _rule.columns;
        IF NOT _of_newer @> _keys THEN
            _newer := NULL;
        END IF;
        CONTINUE WHEN _rule.phase = 'again' AND (_newer IS NULL OR NOT _of_newer @> _rule.columns);
        _same := (SELECT string_agg(format('newer.%1$I = restored.%1$I', k), ' AND ') FROM unnest(_keys) k);
        _known := CASE WHEN 'tenant_id' = ANY (_keys)
                       THEN 'restored.tenant_id IN (SELECT id FROM pg_temp.known_tenants)' ELSE 'true' END;
        CASE _rule.action
        WHEN 'change' THEN
            IF _rule.what = 'users erased' AND 'external_id' = ANY (_of_restored) THEN
                EXECUTE format('INSERT INTO pg_temp.erased SELECT restored.tenant_id, restored.id, restored.external_id
                                FROM %s restored JOIN %s newer ON %s WHERE %s',
                               _restored, _newer, _same, _rule.condition);
            END IF;
            _set := (SELECT string_agg(format('%1$I = newer.%1$I', c), ', ') FROM unnest(_rule.columns || _rule.also) c
                     WHERE c = ANY (_of_restored) AND c = ANY (_of_newer));
            _set := concat_ws(', ', _set, (SELECT string_agg(format('%I = DEFAULT', c), ', ') FROM unnest(_rule.reset) c
                                           WHERE c = ANY (_of_restored)));
            EXECUTE format('UPDATE %s restored SET %s FROM %s newer WHERE %s AND (%s)',
                           _restored, _set, _newer, _same, _rule.condition);
        WHEN 'end' THEN
            EXECUTE format('DELETE FROM %s restored WHERE NOT EXISTS (SELECT FROM %s newer WHERE %s) AND %s AND (%s)',
                           _restored, _newer, _same, _known, _rule.condition);
        WHEN 'add' THEN
            _set := (SELECT string_agg(quote_ident(c), ', ') FROM unnest(_rule.columns) c);
            EXECUTE format('INSERT INTO %s (%s) SELECT %s FROM %s newer WHERE %s AND (%s) ON CONFLICT DO NOTHING',
                           _restored, _set, _set, _newer, replace(_known, 'restored.', 'newer.'), _rule.condition);
        WHEN 'set' THEN
            EXECUTE format('UPDATE %s restored SET %s WHERE %s', _restored, _rule.assignments, _rule.condition);
        WHEN 'delete' THEN
            EXECUTE format('DELETE FROM %s restored WHERE %s', _restored, _rule.condition);
        WHEN 'count' THEN
            EXECUTE format('SELECT FROM %s restored WHERE (%s) AND NOT (%s)', _restored, _rule.condition,
                           CASE WHEN _newer IS NULL THEN 'false' ELSE format(
                               '%s AND EXISTS (SELECT FROM %s newer WHERE %s)', _known, _newer, _same) END);
        END CASE;
        GET DIAGNOSTICS _done = ROW_COUNT;
        INSERT INTO pg_temp.counts VALUES (_rule.phase, _rule.what, _done);
    END LOOP;
END $$;
"""
_REPORT = """
SELECT json_build_object(
    'counts', COALESCE((SELECT json_agg(json_build_array(phase, what, done)) FROM (
        SELECT phase, what, sum(done) AS done FROM pg_temp.counts GROUP BY phase, what HAVING sum(done) > 0) c), '[]'),
    'tenants_back', COALESCE((SELECT json_agg(id ORDER BY id) FROM pg_temp.tenants_back), '[]'),
    'erased', COALESCE((SELECT json_agg(json_build_array(tenant_id, user_id, external_id)) FROM pg_temp.erased), '[]'));
"""
