"""Revision 0005 of the producer role: the contract's lengths, for rows written from now on."""

from backstop.schema.apply import apply

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    apply("producer", revision)
