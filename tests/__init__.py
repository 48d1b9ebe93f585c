"""The promises, as tests. They run on real servers: local ones, or those DATABASE_URL and REDIS_URL name."""
