"""Revision 0005 of the control role: runs by hand that ask for no resend."""

from backstop.schema.apply import apply

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    apply("control", revision)
