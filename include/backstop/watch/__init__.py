"""Sees losses coming, and whether Backstop's own duties still succeed."""
