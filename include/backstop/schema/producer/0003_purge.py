"""Revision 0003 of the producer role: an index over what ended, built before, where there are writers; what an erasure leaves."""

from alembic import context, op
from sqlalchemy import text

from backstop.schema.build_indexes import indexes_of
from backstop.schema.revisions import revisions

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    for index in indexes_of(revisions("producer")[revision]):
        # To ask for an index that is there would still lock every writer out for a moment.
        there = None if context.is_offline_mode() else op.get_bind().scalar(text("SELECT to_regclass(:n)"), {"n": index.name})
        if there is None:
            op.execute(index.statement())
    op.execute("ALTER TABLE message_stub ADD COLUMN IF NOT EXISTS erased_hash bytea")
