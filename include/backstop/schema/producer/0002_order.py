"""Revision 0002 of the producer role: the messages of one ordering key are found by index."""

from backstop.schema.apply import apply

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    apply("producer", revision)
