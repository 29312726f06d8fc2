"""Revision 0005 of the producer role: which broker each send went to."""

from backstop.schema.apply import apply

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    apply("producer", revision)
