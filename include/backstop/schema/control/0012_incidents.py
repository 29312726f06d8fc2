"""Revision 0012 of the control role: replays by hand, planned, approved, then asked for."""

from backstop.schema.apply import apply

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    apply("control", revision)
