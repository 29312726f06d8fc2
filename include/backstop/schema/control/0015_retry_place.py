"""Revision 0015 of the control role: how far each group was in its retry queues."""

from backstop.schema.apply import apply

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    apply("control", revision)
