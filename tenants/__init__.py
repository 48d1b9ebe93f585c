"""What every row and key belongs to: the database, Redis, tenants and who may act in them."""
