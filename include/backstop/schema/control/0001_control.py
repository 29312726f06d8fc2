"""Revision 0001 of the control role: everything of Backstop's own."""

from backstop.schema.apply import apply

revision = "0001"
down_revision = None


def upgrade() -> None:
    apply("control", revision)
