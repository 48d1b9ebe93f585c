"""The promises, as tests. They run on real servers: the embedded ones, or those DATABASE_URL and REDIS_URL name."""
