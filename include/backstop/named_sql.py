"""Load the SQL of a package from its .sql file: each query has a name and a sentence.

A query starts with the line `-- name: <name>: <what it does>`, or short `-- <name>: <what it does>` when
no line of the file has the long form. Parameters are in pyformat (`%(topic)s`). What stands before the
first query is the file's comment.
"""

import re
from functools import cache
from importlib.resources import files

_LONG = re.compile(r"^-- name: ([a-z][a-z0-9_]*): \S.*$", re.MULTILINE)
_SHORT = re.compile(r"^-- ([a-z][a-z0-9_]*): \S.*$", re.MULTILINE)


@cache
def load(package: str, file: str) -> dict[str, str]:
    """The queries of `file` in `package` by name, without a final semicolon.

    Raises ValueError when the file has no query, an empty one, or two of one name.
    """
    text = files(package).joinpath(file).read_text(encoding="utf-8")
    starts = list(_LONG.finditer(text)) or list(_SHORT.finditer(text))
    queries: dict[str, str] = {}
    ends = [start.start() for start in starts[1:]] + [len(text)]
    for start, end in zip(starts, ends, strict=False):
        name, body = start[1], text[start.end() : end].strip().removesuffix(";").rstrip()
        if name in queries or not body:
            raise ValueError(f"{package}/{file}: query {name!r} is empty, or there twice")
        queries[name] = body
    if not queries:
        raise ValueError(f"{package}/{file}: no query (a line `-- name: <name>: <what it does>`)")
    return queries
