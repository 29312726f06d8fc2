"""Revision 0018 of the control role: decisions that one person proposes and another approves."""

from backstop.schema.apply import apply

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    apply("control", revision)
