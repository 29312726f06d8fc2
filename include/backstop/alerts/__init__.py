"""Tells people: the outbox of alerts, sent to every channel that wants them, and told again while nobody decides."""
