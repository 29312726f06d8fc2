"""Revision 0001 of the producer role: the stubs and the attempts to send them."""

from backstop.schema.apply import apply

revision = "0001"
down_revision = None


def upgrade() -> None:
    apply("producer", revision)
