"""What a migration needs to replace parts of a SQL function."""

import sqlalchemy as sa
from alembic import op


def change_function(name: str, changes: dict[str, str]) -> None:
    """Replace parts of a function as it is in the database, whichever migration wrote it last."""
    definition = op.get_bind().scalar(sa.text("SELECT pg_get_functiondef(to_regproc(:name))"), {"name": name})
    assert definition is not None, f"there is no function {name}"  # noqa: S101
    for old, new in changes.items():
        assert old in definition, f"{name} has no {old}"  # noqa: S101
        definition = definition.replace(old, new)
    op.execute(definition)
