"""Revision 0011 of the control role: questions to people, each shown by one run in Airflow."""

from backstop.schema.apply import apply

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    apply("control", revision)
