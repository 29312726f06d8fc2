"""Load the SQL of a package from its .sql file: each query has a name and a sentence. The one place that reads SQL files.

A query starts with the line `-- name: <name>: <what it does>`, or short `-- <name>: <what it does>` when
no line of the file has the long form. Parameters are in pyformat (`%(topic)s`). What stands before the
first query is the file's comment.
"""

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_LONG = re.compile(r"^-- name: ([a-z][a-z0-9_]*): (\S.*)$", re.MULTILINE)
_SHORT = re.compile(r"^-- ([a-z][a-z0-9_]*): (\S.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a file; `sentence` says what it does."""

    name: str
    sentence: str
    sql: str


def read_sql(package: str, file: str) -> str:
    """The whole text of `file` in `package`."""
    return files(package).joinpath(file).read_text(encoding="utf-8")


@cache
def load(package: str, file: str) -> dict[str, str]:
    """The queries of `file` in `package` by name, without a final semicolon. Raises ValueError as `load_queries`."""
    return {query.name: query.sql for query in load_queries(package, file)}


@cache
def load_queries(package: str, file: str) -> tuple[Query, ...]:
    """The queries of `file` in `package` in their order.

    Raises ValueError when the file has no query, an empty one, or two of one name.
    """
    text = read_sql(package, file)
    starts = list(_LONG.finditer(text)) or list(_SHORT.finditer(text))
    queries: dict[str, Query] = {}
    ends = [start.start() for start in starts[1:]] + [len(text)]
    for start, end in zip(starts, ends, strict=False):
        name, body = start[1], text[start.end() : end].strip().removesuffix(";").rstrip()
        if name in queries or not body:
            raise ValueError(f"{package}/{file}: query {name!r} is empty, or there twice")
        queries[name] = Query(name, start[2].strip(), body)
    if not queries:
        raise ValueError(f"{package}/{file}: no query (a line `-- name: <name>: <what it does>`)")
    return tuple(queries.values())
