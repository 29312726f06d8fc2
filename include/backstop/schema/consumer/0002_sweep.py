"""Revision 0002 of the consumer role: what the sweep looks for, by an index."""

from backstop.schema.apply import apply_to_tables_in_use

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    apply_to_tables_in_use("consumer", revision)
