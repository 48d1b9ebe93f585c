"""What every row and key hangs on: the database, Redis, tenants and who may act in them."""
