"""Idempotency records that other programs keep, read and swept without touching their code."""
