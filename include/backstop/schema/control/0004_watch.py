"""Revision 0004 of the control role: predicted loss and who watches Backstop."""

from backstop.schema.apply import apply

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    apply("control", revision)
