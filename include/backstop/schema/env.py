"""What Alembic runs for a migration: everything comes from migrate.py, nothing from files or the
environment."""

from alembic import context

attributes = context.config.attributes
if context.is_offline_mode():
    context.configure(
        dialect_name="postgresql",
        dialect_opts={"paramstyle": "named"},
        version_table=attributes["version_table"],
        output_buffer=attributes["output"],
    )
else:
    context.configure(connection=attributes["connection"], version_table=attributes["version_table"])
with context.begin_transaction():
    if context.is_offline_mode():
        context.execute(attributes["lock"])
    context.run_migrations()
