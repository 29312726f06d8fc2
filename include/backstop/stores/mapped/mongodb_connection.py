"""One lazy connection to somebody else's MongoDB, which only reads: the primary alone, what a majority has, never waiting forever.

Three questions around each piece of work make absence an answer:

    hello                   which server this is, and which of its lives; a secondary, a router and a server that does not say are refused
    a linearizable read     a majority has everything that this primary had taken by now, whatever write concern it was written with
    ... the work ...        read concern majority: nothing that a failover could take back
    hello                   the same server in the same life: no other one answered in between

A server outside of a replica set has no majority, and nothing to fall behind: there the two hellos suffice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from backstop.config.mapped import table_parts
from backstop.model.errors import StoreUnavailable
from backstop.model.mask_secrets import mask_secrets
from backstop.sql.connection import AFTER_REFUSAL, CONNECT_TIMEOUT, GRACE, STATEMENT_TIMEOUT

T = TypeVar("T")
_UNAUTHORISED = frozenset({13, 18, 8000})
"""No privilege; a wrong login; the same by MongoDB's own service."""


@dataclass(frozen=True, slots=True)
class Server:
    """One primary in one of its lives, for one piece of work."""

    client: Any
    default: str
    """The database of the connection."""
    now: datetime
    """By its own clock."""
    life: str
    """Names the server and its present life: another text after a restart or an election."""
    replica_set: str | None

    def database(self, table: str) -> Any:
        """That of a collection, as a mapping names it."""
        schema, _ = table_parts(table)
        return self.client.get_database(schema or self.default, **self._options())

    def collection(self, table: str) -> Any:
        return self.database(table)[table_parts(table)[1]]

    def barrier(self, table: str) -> None:
        """Returns once a majority has everything that this primary had taken: then majority reads miss nothing of it."""
        if self.replica_set is not None:
            from pymongo.read_concern import ReadConcern

            linearizable = ReadConcern("linearizable")
            self.collection(table).with_options(read_concern=linearizable).find_one({}, {"_id": 1})

    def _options(self) -> dict[str, Any]:
        from bson.codec_options import CodecOptions, DatetimeConversion
        from pymongo import ReadPreference
        from pymongo.read_concern import ReadConcern

        return {
            # No date and no text of another program's makes a whole answer unreadable.
            "codec_options": CodecOptions(
                datetime_conversion=DatetimeConversion.DATETIME_MS,
                unicode_decode_error_handler="surrogateescape",
            ),
            "read_preference": ReadPreference.PRIMARY,
            "read_concern": ReadConcern("majority" if self.replica_set is not None else "local"),
        }


class MongoConnection:
    """`run(work)` calls `work(server)`. For one thread at a time. PyMongo is imported by the first use: it is an extra of its own.

    `subject` names the store in errors: "shard shop_a". Opened by the first call, not by the constructor.
    """

    def __init__(
        self, subject: str, url: str, *, statement_timeout: timedelta = STATEMENT_TIMEOUT
    ) -> None:
        self.subject, self._url = subject, url
        self._seconds = statement_timeout.total_seconds()
        self._client: Any = None
        self._default, self._password = "", ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.subject})"

    def run(self, work: Callable[[Server], T], *, table: str | None = None) -> T:
        """What `work` returns, all of it answered by one primary. `table`: a collection that it reads. `work` is called again where a
        connection that was idle turns out to be gone. Raises StoreUnavailable."""
        pymongo = self._driver()
        was_open = self._client is not None
        try:
            return self._once(pymongo, work, table)
        except _errors(pymongo) as error:
            gone = isinstance(error, pymongo.errors.AutoReconnect) and not error.timeout
            if not (was_open and gone):
                raise self._unavailable(error) from None
            self.close()
        except BaseException:
            self.close()
            raise
        return self.run(work, table=table)

    def close(self) -> None:
        """Safe to call twice; the next `run` opens again."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _once(self, pymongo: Any, work: Callable[[Server], T], table: str | None) -> T:
        server = self._server()
        # One limit for all of it: the driver gives each command what is left, also while it looks for a server.
        with pymongo.timeout(self._seconds):
            if table is not None:
                server.barrier(table)
            result = work(server)
            after = self._server()
        if after.life != server.life:
            raise self._not_relied_on(
                "another server became primary, or it was restarted, while it was read"
            )
        return result

    def _server(self) -> Server:
        client = self._open()
        hello = client.admin.command("hello")
        why, life = _identity(hello)
        if why is not None:
            raise self._not_relied_on(why)
        now = hello["localTime"].replace(tzinfo=UTC)
        return Server(client, self._default, now, life, hello.get("setName"))

    def _open(self) -> Any:
        if self._client is None:
            pymongo = self._driver()
            parsed = self._parsed(pymongo)
            self._default, self._password = parsed["database"], parsed["password"] or ""
            seconds = CONNECT_TIMEOUT.total_seconds()
            # Whatever else the URL says: no single server is asked past its set, and nothing is read from a secondary.
            self._client = pymongo.MongoClient(
                self._url,
                appname="backstop",
                directConnection=False,
                readPreference="primary",
                serverSelectionTimeoutMS=round(seconds * 1000),
                connectTimeoutMS=round(seconds * 1000),
                socketTimeoutMS=round((self._seconds + GRACE) * 1000),
                # Within a limit of its own the driver would ask a server that is gone again until the limit is over.
                retryReads=False,
                # A reader of minutes needs no line that stays open to each server only to hear of changes.
                serverMonitoringMode="poll",
                maxPoolSize=1,
                tz_aware=False,
            )
        return self._client

    def _parsed(self, pymongo: Any) -> Mapping[str, Any]:
        """The parts of the URL. Raises StoreUnavailable."""
        from pymongo.uri_parser import parse_uri

        problem = "it is not a MongoDB database"
        not_understood: tuple[type[BaseException], ...] = (*_errors(pymongo), ValueError)
        if self._url.startswith(("mongodb://", "mongodb+srv://")):
            try:
                parsed: Mapping[str, Any] = parse_uri(self._url, warn=False)
                if parsed["database"] and not parsed["options"].get("loadBalanced"):
                    return parsed
                problem = "it names no database, or a load balancer"
            except not_understood:
                problem = "its address or one of its options is not understood"
        raise StoreUnavailable(
            f"The connection of {self.subject} cannot be used: {problem}.",
            unaffected="Nothing was read, and nothing was decided without it.",
            next_step="Write it as mongodb://user:password@host:27017/database?replicaSet=name, or correct mapping.dialect.",
        )

    def _driver(self) -> Any:
        try:
            import pymongo
            import pymongo.errors
        except ModuleNotFoundError:
            raise StoreUnavailable(
                f"The database of {self.subject} is MongoDB, and PyMongo is not installed.",
                unaffected="Nothing was decided without it.",
                next_step='Install "backstop-mq[mongodb]" where the duties run.',
            ) from None
        return pymongo

    def _not_relied_on(self, why: str) -> StoreUnavailable:
        self.close()
        return StoreUnavailable(
            f"The database of {self.subject} is not to be relied on: {why}.",
            unaffected="Nothing was decided by it: what such a server lacks is not absent.",
            next_step="Name the replica set that the application writes to; the next run reads it again.",
        )

    def _unavailable(self, error: BaseException) -> StoreUnavailable:
        self.close()
        code = getattr(error, "code", None)
        # Behind its first sentence the driver describes what it knows of all the servers.
        lines = re.split(r", full error:|, Timeout:| \(configured timeouts:|\n", str(error))
        why = mask_secrets(lines[0].rstrip(".") or type(error).__name__, [self._password])
        if code in _UNAUTHORISED:
            return StoreUnavailable(
                f"The database of {self.subject} refused: {why}.",
                unaffected="Nothing was decided without it.",
                next_step=f"{AFTER_REFUSAL} The login needs the role read on the mapped database.",
            )
        refused = code is not None
        return StoreUnavailable(
            f"The database of {self.subject} did not answer: {'it refused: ' if refused else ''}{why}.",
            unaffected="Nothing was decided from its silence.",
            next_step="Restart it, or correct its connection; the next run continues where this one stopped.",
        )


def _identity(hello: Mapping[str, Any]) -> tuple[str | None, str]:
    """(why what this server lacks is not absent; null: it is a primary that says which life of which server it is, that life)."""
    process = (hello.get("topologyVersion") or {}).get("processId")
    names = [hello.get("setName"), hello.get("me"), hello.get("electionId"), process]
    life = " ".join(str(name or "-") for name in names)
    if hello.get("msg") == "isdbgrid" or "serviceId" in hello:
        return "it is a router, whose shards are not read as one", life
    if not hello.get("isWritablePrimary"):
        return "it is not a primary", life
    if process is None:
        return "it does not say since when it runs, which MongoDB 4.4 and later do", life
    if hello.get("setName") is not None and not (hello.get("electionId") and hello.get("me")):
        return "it does not say by which election it is primary", life
    return None, life


def _errors(pymongo: Any) -> tuple[type[BaseException], ...]:
    """What keeps a server from answering, or the driver from understanding it."""
    import bson.errors

    return (pymongo.errors.PyMongoError, bson.errors.BSONError, OSError)
