"""Leases: one worker at a time processes a message for a group, and its work is done once."""
