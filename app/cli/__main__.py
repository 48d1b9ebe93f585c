"""`python -m app.cli` is `plaudit`."""

from app.cli import main

main()
