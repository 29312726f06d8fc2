"""Revision 0001 of the consumer role: the logs and how far they were purged."""

from backstop.schema.apply import apply

revision = "0001"
down_revision = None


def upgrade() -> None:
    apply("consumer", revision)
