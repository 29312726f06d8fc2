"""Revision 0005 of the producer role: which broker each send went to."""

from backstop.schema.apply import apply_to_tables_in_use

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    apply_to_tables_in_use("producer", revision)
