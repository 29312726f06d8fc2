"""One snapshot of a lake table, as Spark reads it: the rows that it had at one commit, and up to when that commit can be complete.

Iceberg keeps snapshots. A directory of Parquet files has none: its `_SUCCESS` file, which a job writes last, stands for one, while
nothing below it was written later or is being written: a job that rewrites a partition deletes it first.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from backstop.config.mapped import LogMapping, StubMapping
from backstop.model.errors import StoreUnavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_BRINGS_ROWS: Final = "append"
"""The operation of a commit that only adds rows, or none: the pipeline is there. Compaction (replace) and retention (delete) commit, too,
and say nothing about what has arrived; nor does an overwrite, which a DELETE or UPDATE is that rewrites files."""
_TRIES: Final = 3
_UNFINISHED: Final = "{_temporary,.spark-staging*}"
"""Where Spark's jobs write before they end."""
_DEPTH: Final = 8
"""Levels of partitions that are searched for them."""
_UNAFFECTED: Final = "Nothing was decided without it, and nothing else depends on it."
_GONE: Final = (
    "FILE_NOT_EXIST",
    "FileNotFoundException",
    "NotFoundException",
    "NoSuchKey",
    "UNABLE_TO_INFER_SCHEMA",
)
_NO_TABLE: Final = ("TABLE_OR_VIEW_NOT_FOUND", "NoSuchTableException", "PATH_NOT_FOUND")
_NO_RUNTIME: Final = ("SparkCatalog", "CATALOG_NOT_FOUND", "catalog plugin")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`frame`: its rows, whatever is committed later. `identity`: names the table and the snapshot. `written_at`: when the newest
    append was made, by the writer's clock; null: none is kept, or files may be missing. `committed_at`: when the
    snapshot itself was, before which its writer had written all of it."""

    frame: DataFrame
    identity: str
    written_at: datetime | None
    committed_at: datetime


def present_snapshot(
    subject: str, url: str, mapping: StubMapping | LogMapping, session: SparkSession
) -> Snapshot:
    """The newest one. StoreUnavailable where there is none, or the table cannot be read."""
    with explained(subject, mapping.tables[0]):
        if mapping.dialect == "iceberg":
            return _of_iceberg(subject, url, mapping.tables[0], session)
        return _of_parquet(subject, url, mapping.tables[0], session)


def spark_session(subject: str) -> SparkSession:
    """The session of this process. StoreUnavailable without one: starting it is for whoever runs the process."""
    session = None
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
        if session is None and SparkContext._active_spark_context is not None:
            session = SparkSession.builder.getOrCreate()
    except ImportError:
        pass
    if session is None:
        raise StoreUnavailable(
            f"{_begun(subject)} is a lake table, which Spark reads, and this process runs no Spark.",
            unaffected=_UNAFFECTED,
            next_step="Use `backstop run reconcile`, `prove`, `where`, `check` or `cases decide` on the command line, which start it.",
        )
    return session


@contextmanager
def explained(subject: str, table: str) -> Iterator[None]:
    """What Spark says of a table, as StoreUnavailable with what to do about it."""
    try:
        yield
    except StoreUnavailable:
        raise
    except Exception as error:
        said = str(error)
        lines = said.strip().splitlines()
        why = lines[0].rstrip(".")[:300] if lines else type(error).__name__
        what, do = f"could not be read: {why}", "Correct what is named; the next run reads it again"
        if any(word in said for word in _NO_RUNTIME):
            what = f"could not be opened: {why}"
            do = (
                "Give Spark the jar iceberg-spark-runtime for its version (spark.jars), and configure the catalog that the"
                " connection names"
            )
        elif any(word in said for word in _NO_TABLE):
            what, do = "is not there", "Correct mapping.tables, or the connection"
        elif any(word in said for word in _GONE):
            what = "was rewritten, or its snapshot expired, while it was read"
            do = (
                "Keep snapshots and replaced files longer than a run takes; the next run reads the"
                " newest snapshot"
            )
        raise StoreUnavailable(
            f"{_begun(subject)}: the lake table {table} {what}.",
            unaffected=_UNAFFECTED,
            next_step=f"{do}.",
        ) from error


def iceberg_name(url: str, table: str, session: SparkSession) -> str:
    """The table's name in SQL. A catalog over the warehouse is configured in the session, unless the connection names one that
    Spark's own configuration has."""
    return ".".join(f"`{part}`" for part in _parts(url, table, session))


def iceberg_table(url: str, table: str, session: SparkSession) -> Any:
    """Iceberg's own table, as it is now: what it is asked takes no job of Spark's."""
    catalog, *folders, name = _parts(url, table, session)
    jvm: Any = session._jvm
    namespace = session.sparkContext._gateway.new_array(jvm.String, len(folders))
    for at, folder in enumerate(folders):
        namespace[at] = folder
    identifier = jvm.org.apache.spark.sql.connector.catalog.Identifier.of(namespace, name)
    # Spark looks for a catalog in the settings of the thread's own session, and a new thread has none.
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
    catalogs = session._jsparkSession.sessionState().catalogManager()
    return catalogs.catalog(catalog).loadTable(identifier).table()


def _parts(url: str, table: str, session: SparkSession) -> list[str]:
    parts = [part.strip("`") for part in re.findall(r"`[^`]+`|[^.`]+", table)]
    if url.startswith("catalog://"):
        return [url.removeprefix("catalog://").strip("/"), *parts]
    catalog = f"backstop_{hashlib.sha256(url.encode()).hexdigest()[:12]}"
    at = f"spark.sql.catalog.{catalog}"
    session.conf.set(f"{at}.type", "hadoop")
    session.conf.set(f"{at}.warehouse", url)
    # What another process commits is seen at once.
    session.conf.set(f"{at}.cache-enabled", "false")
    session.conf.set(at, "org.apache.iceberg.spark.SparkCatalog")
    return [catalog, *parts]


def _of_iceberg(subject: str, url: str, table: str, session: SparkSession) -> Snapshot:
    its = iceberg_table(url, table, session)
    head = its.currentSnapshot()
    if head is None:
        raise _none(subject, table, "no snapshot: nothing was ever committed to it")
    at = head
    while at is not None and at.operation() != _BRINGS_ROWS:
        before = at.parentId()
        at = None if before is None else its.snapshot(before)  # none: it has expired
    name = iceberg_name(url, table, session)
    frame = session.sql(f"SELECT * FROM {name} VERSION AS OF {head.snapshotId()}")
    return Snapshot(
        frame,
        f"{name} {head.snapshotId()}",
        None if at is None else _instant(at.timestampMillis() * 1000),
        _instant(head.timestampMillis() * 1000),
    )


def _of_parquet(subject: str, url: str, table: str, session: SparkSession) -> Snapshot:
    root = f"{url.rstrip('/')}/{table}"
    for _ in range(_TRIES):
        before = _marker(session, root)
        if before is None:
            says = "no _SUCCESS file: nothing says that what wrote it last has ended"
            raise _none(subject, table, says)
        # Spark lists the files once, here; what is read later is these files or an error.
        frame = (
            session.read.option("ignoreMissingFiles", "false")
            .option("ignoreCorruptFiles", "false")
            .parquet(root)
        )
        is_whole = _is_at_rest(session, root, before)
        if _marker(session, root) == before:
            at = _instant(before * 1000)
            return Snapshot(frame, f"{root} {before}", at if is_whole else None, at)
    raise _none(subject, table, f"it was written again during each of {_TRIES} tries to list it")


def _marker(session: SparkSession, root: str) -> int | None:
    """When a job last ended there, in milliseconds."""
    jvm: Any = session._jvm
    path = jvm.org.apache.hadoop.fs.Path(f"{root}/_SUCCESS")
    files = path.getFileSystem(session._jsc.hadoopConfiguration())
    return int(files.getFileStatus(path).getModificationTime()) if files.exists(path) else None


def _is_at_rest(session: SparkSession, root: str, marked_at: int) -> bool:
    """Whether nothing below the directory is being written, or was after its marker: files may be gone, and not yet back."""
    jvm: Any = session._jvm
    files = jvm.org.apache.hadoop.fs.Path(root).getFileSystem(session._jsc.hadoopConfiguration())
    for depth in range(_DEPTH):
        unfinished = jvm.org.apache.hadoop.fs.Path(f"{root}{'/*' * depth}/{_UNFINISHED}")
        if len(files.globStatus(unfinished) or ()):
            return False
    listed = session.read.format("binaryFile").option("recursiveFileLookup", "true").load(root)
    ((newest,),) = listed.selectExpr("unix_millis(max(modificationTime))").collect()
    return newest is not None and int(newest) <= marked_at


def _none(subject: str, table: str, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{_begun(subject)}: the lake table {table} has no snapshot to read: {why}.",
        unaffected=_UNAFFECTED,
        next_step="Let its writer commit, or correct mapping.tables; the next run reads it again.",
    )


def _instant(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def _begun(subject: str) -> str:
    return f"{subject[:1].upper()}{subject[1:]}"
