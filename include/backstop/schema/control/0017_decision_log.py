"""Revision 0017 of the control role: what people decided, appended and never changed."""

from backstop.schema.apply import apply

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    apply("control", revision)
