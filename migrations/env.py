"""Alembic's environment. It uses the connection of `migrations.run`, which has taken the lock."""

from alembic import context

from migrations.run import load_models
from tenants.db import Base

load_models()
context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
