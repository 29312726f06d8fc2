"""Revision 0003 of the producer role: an index over what ended; what an erasure leaves."""

from backstop.schema.apply import apply_to_tables_in_use

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    apply_to_tables_in_use("producer", revision)
