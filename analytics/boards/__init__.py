"""Boards: what they are called, how they are computed, projected to Redis, read and checked."""
