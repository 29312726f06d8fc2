"""Revision 0004 of the producer role: the place, broker and groups of number 1, for who owes a message."""

from backstop.schema.apply import apply_to_tables_in_use

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    apply_to_tables_in_use("producer", revision)
