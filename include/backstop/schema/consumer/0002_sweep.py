"""Revision 0002 of the consumer role: what the sweep looks for, by an index."""

from backstop.schema.apply import apply

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    apply("consumer", revision)
