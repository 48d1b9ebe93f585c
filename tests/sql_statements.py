"""Reads SQL as far as the rules of statements need it: which tables a statement names, and what it compares.

A statement is a tuple of tokens, in which each pair of parentheses is a tuple of its own.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cache

_TOKEN = re.compile(
    r"""
      --[^\n]* | /\*.*?\*/                                    # comments
    | (?P<string> E?'(?:[^']|'')*' | \$\$.*?\$\$ )
    | (?P<word> [:$%@]?(?:\w+|"[^"]+")(?:\.(?:\w+|"[^"]+"|\*))* | :: | [<>!=|]+ | [(),;*+/-] | \S )
    """,
    re.VERBOSE | re.DOTALL,
)
_BEFORE_A_TABLE = {"FROM", "JOIN", "UPDATE", "INTO", "USING"}
_SET_OPERATIONS = {"UNION", "EXCEPT", "INTERSECT"}
_QUERIES = {"SELECT", "WITH", "INSERT", "UPDATE", "DELETE", "VALUES"}
_VERBS = {*_QUERIES, "SET", "BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "LOCK", "CREATE", "ALTER", "DROP"}
_NOT_AN_ALIAS = {
    "AS", "ON", "SET", "WHERE", "JOIN", "LEFT", "CROSS", "INNER", "USING", "GROUP", "ORDER", "LIMIT", "FOR", "UNION",
    "RETURNING", "SELECT", "VALUES", "HAVING", "LOOP", "OVERRIDING", "EXCEPT", "INTERSECT", "OFFSET", "DEFAULT",
}  # fmt: skip
# What stands for the tenant: a parameter, a variable of a function, or a value that is written out.
_VALUE = re.compile(r"[:$%']|_tenant$")

_VOLATILE = {"clock_timestamp", "random", "gen_random_uuid", "nextval"}
# The tables whose rows get a number.
NUMBERED = {"outbox", "pages", "score_ledger"}

Tokens = tuple["str | Tokens", ...]


@dataclass
class Reference:
    """A table that a statement reads or writes."""

    table: str
    alias: str
    verb: str
    # Of the query it belongs to, without its subqueries.
    words: list[str] = field(repr=False)


def broken_rules(sql: str, tables: Collection[str]) -> list[str]:
    """What a message breaks. The tables are those with rows of tenants."""
    statements = statements_of(sql)
    said = ["several statements in a message"] if len(statements) > 1 else []
    if re.search(r"set_config\(\s*'plaudit\.", sql):
        said.append("set_config of the tenant")
    for tokens in statements:
        said += broken_rules_of_one(tokens, tables)
    return said


def broken_rules_of_one(tokens: Tokens, tables: Collection[str]) -> list[str]:
    """What a statement breaks."""
    said = [f"{table}: no tenant_id" for table in unbound(tokens, tables)]
    for words in inserted_by_select(tokens):
        said += [] if is_pushed_down(words) else ["INSERT … SELECT"]
        said += ["a drawn number in INSERT … SELECT"] if draws_number(words) else []
        said += ["RETURNING without an alias"] if lacks_alias(words) else []
    if reads_parts_only(tokens, tables):
        said.append("SELECT from parts of the statement only")
    changes = [query for query in _queries(tokens) if _is_change(query) and any(references(query, tables))]
    if any(_VOLATILE & {*_own_words(query)} for query in changes):
        said.append("a volatile function in a change")
    if any(_moves_a_column_in_time(list(_own_words(query))) for query in changes):
        said.append("an interval added to a column in a change")
    if any(word.rpartition(".")[2] == "ctid" for query in _queries(tokens) for word in _own_words(query)):
        said.append("ctid")
    return said


@cache
def statements_of(sql: str) -> list[Tokens]:
    """Its statements: those of a message, or of a function's body, where a loop's query is one of its own."""
    return [tokens for tokens in _split(_nested(_words(sql)), {";", "LOOP"}) if tokens]


def references(tokens: Tokens, tables: Collection[str]) -> Iterator[Reference]:
    """The tables among these that a statement names, in all its queries."""
    for query in _queries(tokens):
        words = list(_own_words(query))
        for place, token in enumerate(query):
            if not isinstance(token, str) or token.removeprefix("public.") not in tables:
                continue
            before = query[place - 1] if place else ""
            two_before = query[place - 2] if place > 1 else ""
            listed = before == "," and _is_in_from(query, place)
            if not listed and (before not in _BEFORE_A_TABLE or (before == "INTO" and two_before != "INSERT")):
                continue
            name = token.removeprefix("public.")
            yield Reference(name, _alias(query, place) or name, "FROM" if listed else str(before), words)


def unbound(tokens: Tokens, tables: Collection[str]) -> list[str]:
    """The tables whose rows are not those of one tenant: `tenant_id` is compared with nothing that names it."""
    found = list(references(tokens, {*tables, "tenants"}))
    read = [reference for reference in found if reference.verb != "INTO"]
    missing = [one.table for one in found if one.verb == "INTO" and "tenant_id" not in one.words]
    known: set[str] = set()  # the aliases whose tenant is known
    while True:
        new = {one.alias for one in read if one.alias not in known and _names_tenant(one, known)}
        if not new:
            break
        known |= new
    return [table for table in missing if table != "tenants"] + [
        one.table for one in read if one.table != "tenants" and not _names_tenant(one, known)
    ]


def starts_with_verb(tokens: Tokens) -> bool:
    """Whether this is a statement, and neither a part of one nor another text."""
    return tokens[0] in _VERBS


def inserted_by_select(tokens: Tokens) -> Iterator[list[str]]:
    """The words of each INSERT … SELECT, without its subqueries."""
    for query in _queries(tokens):
        words = list(_own_words(query))
        if "INSERT" in words and "SELECT" in words:
            yield words


def is_pushed_down(words: list[str]) -> bool:
    """Whether it joins the tenant's row, so that a node can run it where the tenant's rows are; or returns rows."""
    joined = " ".join(words)
    return "RETURNING" in words or re.search(r"FROM tenants t CROSS JOIN .*\bt\.id = [:$%'_]", joined) is not None


def draws_number(words: list[str]) -> bool:
    """Whether each row gets a number of the table's sequence, which no node can draw for another: with RETURNING the
    coordinator inserts the rows. A column list with `id` says that the numbers are there."""
    inserted = words[words.index("INTO") + 1].removeprefix("public.")
    return inserted in NUMBERED and "RETURNING" not in words and "OVERRIDING" not in words


def lacks_alias(words: list[str]) -> bool:
    """Whether it returns columns of a table that has no alias: pushed down, Citus names the table wrongly."""
    returned = words[words.index("RETURNING") + 1 :] if "RETURNING" in words else ["1"]
    is_joined = re.search(r"FROM tenants t CROSS JOIN", " ".join(words)) is not None
    return is_joined and returned[0] != "1" and words[words.index("INTO") + 2] != "AS"


def reads_parts_only(tokens: Tokens, tables: Collection[str]) -> bool:
    """Whether it ends with a SELECT from what its parts have changed, and from no table: any node could run that."""
    parts = [token for token in tokens if isinstance(token, tuple)]
    has_changes = any(_is_change(part) and any(references(part, tables)) for part in parts)
    last = max((place for place, token in enumerate(tokens) if token in _QUERIES), default=0)
    if tokens[0] != "WITH" or not has_changes or tokens[last] != "SELECT":
        return False
    return not any(True for _ in references(tokens[last:], {*tables, "tenants"}))


def _moves_a_column_in_time(words: list[str]) -> bool:
    """Whether an interval is added to a column or subtracted from one: the result depends on the connection's time
    zone, so Citus refuses that in a change. (Of a parameter or a variable, the coordinator computes it.)"""
    return any(
        word in {"interval", "make_interval"} and words[place - 1] in {"+", "-"} and words[place - 2][0].isalpha()
        for place, word in enumerate(words[2:], 2)
    )


def _is_change(tokens: Tokens) -> bool:
    return bool(tokens) and tokens[0] in {"INSERT", "UPDATE", "DELETE"}


def _words(sql: str) -> Iterator[str]:
    for match in _TOKEN.finditer(sql):
        if match["string"]:
            yield "''"
        elif match["word"]:
            yield match["word"].replace('"', "")


def _nested(words: Iterator[str]) -> Tokens:
    tokens: list[str | Tokens] = []
    for word in words:
        if word == "(":
            tokens.append(_nested(words))
        elif word == ")":
            break
        else:
            tokens.append(word)
    return tuple(tokens)


def _split(tokens: Tokens, at: set[str]) -> Iterator[Tokens]:
    start = 0
    for place, token in enumerate(tokens):
        if token in at:
            yield tokens[start:place]
            start = place + 1
    yield tokens[start:]


def _queries(tokens: Tokens) -> Iterator[Tokens]:
    """Every query in it: the parts of a UNION, subqueries, common table expressions."""
    yield from _split(tokens, _SET_OPERATIONS)
    for token in tokens:
        if isinstance(token, tuple):
            yield from _queries(token)


def _is_query(tokens: Tokens) -> bool:
    return bool(tokens) and tokens[0] in _QUERIES


def _own_words(tokens: Tokens) -> Iterator[str]:
    for token in tokens:
        if isinstance(token, str):
            yield token
        elif not _is_query(token):
            yield "("
            yield from _own_words(token)
            yield ")"


def _is_in_from(query: Tokens, place: int) -> bool:
    """Whether a comma before this place is one between tables."""
    clauses = [token for token in query[:place] if token in {"SELECT", "FROM", "SET", "WHERE", "BY", "ON", "RETURNING"}]
    return bool(clauses) and clauses[-1] == "FROM"


def _alias(query: Tokens, place: int) -> str | None:
    after = [token for token in query[place + 1 : place + 3] if token != "AS"]
    first = after[0] if after else None
    return first if isinstance(first, str) and first.isidentifier() and first.upper() not in _NOT_AN_ALIAS else None


def _names_tenant(reference: Reference, known: Collection[str]) -> bool:
    """Whether its tenant is compared with a value, or with that of a table whose tenant is known."""
    own = {f"{reference.alias}.id"} if reference.table == "tenants" else {f"{reference.alias}.tenant_id", "tenant_id"}
    words = reference.words
    for place, word in enumerate(words[1:-1], 1):
        if word != "=":
            continue
        for side, other in ((words[place - 1], words[place + 1]), (words[place + 1], words[place - 1])):
            alias, _, column = other.rpartition(".")
            same = column in ("tenant_id", "id") and alias in known and alias != reference.alias
            if side in own and (_VALUE.match(other) or same):
                return True
    return False
