"""Load and speed, over HTTP on loopback only, bounded in time."""
