"""Load tests and benchmarks, over HTTP on loopback only, bounded in time."""
