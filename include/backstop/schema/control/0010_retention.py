"""Revision 0010 of the control role: erasures, the audit's looks and findings, and what a purge looks things up by."""

from backstop.schema.apply import apply
from backstop.schema.revisions import revisions

revision = "0010"
down_revision = max(known for known in revisions("control") if known < revision)


def upgrade() -> None:
    apply("control", revision)
