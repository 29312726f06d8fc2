"""Why nothing is recorded, guarded or overlaid in MongoDB."""

READ_ALONE = (
    "MongoDB is only read, as a mapped table (kind: mapped, dialect: mongodb): records of Backstop's own there need a replica set's "
    "transactions, with which it is untried"
)
