"""Revision 0012 of the control role: replays by hand, planned, approved, then asked for."""

from backstop.schema.apply import apply
from backstop.schema.revisions import revisions

revision = "0012"
down_revision = max(known for known in revisions("control") if known < revision)


def upgrade() -> None:
    apply("control", revision)
