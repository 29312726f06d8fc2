"""Revision 0014 of the control role: since when each group takes a topic."""

from backstop.schema.apply import apply

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    apply("control", revision)
