"""Revision 0019 of the control role: the lineage of scanned stores."""

from backstop.schema.apply import apply

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    apply("control", revision)
