"""Revision 0013 of the control role: what the watch sees of each queue of a group."""

from backstop.schema.apply import apply

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    apply("control", revision)
