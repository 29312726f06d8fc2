"""Revision 0003 of the control role: proofs of a window."""

from backstop.schema.apply import apply

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    apply("control", revision)
