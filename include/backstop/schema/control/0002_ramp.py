"""Revision 0002 of the control role: resends in batches: canary, ramp and ordering keys."""

from backstop.schema.apply import apply

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    apply("control", revision)
