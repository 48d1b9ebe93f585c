"""The schema's history: numbered alembic migrations, never edited once released."""
