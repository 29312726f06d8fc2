"""Revision 0004 of the producer role: the contract's lengths, for rows written from now on."""

from backstop.schema.apply import apply

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    apply("producer", revision)
