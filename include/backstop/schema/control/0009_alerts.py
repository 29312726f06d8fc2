"""Revision 0009 of the control role: alerts on their way out."""

from backstop.schema.apply import apply

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    apply("control", revision)
