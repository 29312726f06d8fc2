"""Revision 0008 of the control role: dead letters, what they died of, and what was decided of them."""

from backstop.schema.apply import apply

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    apply("control", revision)
