"""Revision 0006 of the control role: messages that a person withdrew."""

from backstop.schema.apply import apply

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    apply("control", revision)
