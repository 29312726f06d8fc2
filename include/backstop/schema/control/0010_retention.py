"""Revision 0010 of the control role: erasures, the audit's looks and findings, and what a purge looks things up by."""

from backstop.schema.apply import apply

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    apply("control", revision)
