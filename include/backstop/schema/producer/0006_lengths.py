"""Revision 0006 of the producer role: the contract's lengths, for rows written from now on."""

from backstop.schema.apply import apply

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    apply("producer", revision)
