"""Revision 0019 of the control role: a resend is given up for groups, not for a send number."""

from backstop.schema.apply import apply

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    apply("control", revision)
