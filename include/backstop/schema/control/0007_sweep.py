"""Revision 0007 of the control role: what sweeps found, and where they go on."""

from backstop.schema.apply import apply

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    apply("control", revision)
