"""Revision 0016 of the control role: what people answered, as Airflow's own record says, and which run asked for what."""

from backstop.schema.apply import apply

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    apply("control", revision)
