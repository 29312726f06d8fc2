"""Revision 0003 of the consumer role: the contract's lengths, for rows written from now on."""

from backstop.schema.apply import apply

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    apply("consumer", revision)
