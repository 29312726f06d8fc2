"""Revision 0002 of the producer role: indexes for ordering keys and for windows; built before, where there are writers."""

from alembic import context, op
from sqlalchemy import text

from backstop.schema.build_indexes import indexes_of
from backstop.schema.revisions import revisions

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    for index in indexes_of(revisions("producer")[revision]):
        # To ask for an index that is there would still lock every writer out for a moment.
        there = None if context.is_offline_mode() else op.get_bind().scalar(text("SELECT to_regclass(:n)"), {"n": index.name})
        if there is None:
            op.execute(index.statement())
