"""Revision 0006 of the producer role: the contract's lengths, for rows written from now on."""

from backstop.schema.apply import apply_to_tables_in_use

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    apply_to_tables_in_use("producer", revision)
