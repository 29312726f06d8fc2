"""Collections of other programs in MongoDB; see mapped_world."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from bson import Binary

from mapped_library import EXTERNALIZER, LISTENER, Library


def _mongodb_cap(database: Any) -> None:
    for name in ("published", "received"):
        database.create_collection(name)


def _promise_cap(database: Any, id: int) -> None:
    now = datetime.now(UTC)
    database.published.insert_one(
        {
            "_id": id,
            "Version": "v1",
            "Name": "orders",
            "Content": {"blob": b"x" * 1000},
            "Retries": 0,
            "Added": now,
            "Ahead": now + timedelta(hours=8),
            "StatusName": "Scheduled",
        }
    )


def _receive_cap(database: Any, id: int) -> None:
    database.received.insert_one(
        {
            "Id": id + 7000,
            "Name": "orders",
            "Group": "billing.v1",
            "Content": {"Headers": {"cap-msg-id": str(id)}},
            "Added": datetime.now(UTC),
            "StatusName": "Scheduled",
        }
    )


def _mark_received(database: Any, id: int, state: str) -> None:
    _set(database.received, {"Id": id + 7000}, StatusName=state)


def _set(collection: Any, found: Mapping[str, Any], **values: Any) -> None:
    assert collection.update_one(found, {"$set": values}).matched_count == 1


def _two_hours_older(collection: Any, found: Mapping[str, Any], **values: Any) -> None:
    for document in collection.find(found):
        at = document["Added"] - timedelta(hours=2)
        _set(collection, {"_id": document["_id"]}, Added=at, **values)


_STATES = {"state": "StatusName", "topic": "Name", "dialect": "mongodb"}
_CLASS = "org.example.OrderPlaced"


def _publish(database: Any, id: str, listener: str) -> None:
    database.event_publication.insert_one(
        {
            "_id": Binary.from_uuid(uuid.uuid4()),
            "listenerId": listener,
            "event": {"_class": _CLASS, "orderId": id},
            "publicationDate": datetime.now(UTC),
        }
    )


def _complete(database: Any, id: str, listener: str) -> None:
    found = {"listenerId": listener, "event.orderId": id}
    _set(database.event_publication, found, completionDate=datetime.now(UTC))


_PRACTICE_STUB = {"content": "{}", "count": 0, "status": 0, "resendTime": None}
ON_MONGODB: dict[str, Library] = {
    # The states, and two collections, as CAP has them, with ids that can be asked for.
    "cap": Library(
        _mongodb_cap,
        {
            **_STATES,
            "tables": ["published"],
            "message_id": "_id",
            "topics": ["orders"],
            "created_at": "Added",
            "sent": ["Succeeded"],
            "unsent": ["Scheduled", "Queued", "Delayed", "Failed"],
            "changes": ["Retries"],
            "wire_header": "cap-msg-id",
        },
        {
            **_STATES,
            "tables": ["received"],
            "message_id": "Content.Headers.cap-msg-id",
            "group": "Group",
            "groups": {"billing": "billing.v1"},
            "received_at": "Added",
            "done": ["Succeeded"],
            "working": ["Scheduled", "Queued", "Delayed", "Failed"],
            "kept": "24h",
        },
        _promise_cap,
        lambda database, id: database.published.update_one(
            {"_id": id}, {"$set": {"StatusName": "Succeeded"}, "$inc": {"Retries": 1}}
        ),
        _receive_cap,
        lambda database, id: _mark_received(database, id, "Succeeded"),
        server="mongodb",
        acts={
            "state": lambda database, id, state: _set(
                database.published, {"_id": id}, StatusName=state
            ),
            "delete": lambda database, id: database.published.delete_one({"_id": id}),
            "received state": lambda database, id, state: _two_hours_older(
                database.received, {"Id": id + 7000}, StatusName=state
            ),
            "received group": lambda database, id, group: _set(
                database.received, {"Id": id + 7000}, Group=group
            ),
            "received topic": lambda database, id, topic: _set(
                database.received, {"Id": id + 7000}, Name=topic
            ),
            "nameless": lambda database, id, group: database.received.insert_one(
                {"Id": id, "Name": "orders", "Group": group, "Content": "no document"}
            ),
            "all far ahead": lambda database: database.published.update_many(
                {}, {"$set": {"Added": datetime(2999, 12, 31, tzinfo=UTC)}}
            ),
            "all two hours older": lambda database: _two_hours_older(database.published, {}),
        },
        wrong_clock={"created_at": "Ahead"},
    ),
    "modulith": Library(
        lambda database: database.create_collection("event_publication"),
        {
            "preset": "modulith",
            "dialect": "mongodb",
            "only": {"listenerId": EXTERNALIZER},
            "message_id": "event.orderId",
            "topics": {_CLASS: "orders"},
        },
        {
            "preset": "modulith",
            "dialect": "mongodb",
            "message_id": "event.orderId",
            "topics": {_CLASS: "orders"},
            "groups": {"billing": LISTENER},
        },
        lambda database, id: _publish(database, id, EXTERNALIZER),
        lambda database, id: _complete(database, id, EXTERNALIZER),
        lambda database, id: _publish(database, id, LISTENER),
        lambda database, id: _complete(database, id, LISTENER),
        lambda number: f"order-{number}",
        server="mongodb",
    ),
    "practice": Library(
        lambda database: [database.create_collection(name) for name in ("message_stub", "inbox")],
        {"preset": "practice", "dialect": "mongodb", "topics": ["orders"]},
        {
            "dialect": "mongodb",
            "tables": ["inbox"],
            "message_id": "message_id",
            "state": "state",
            "done": ["done"],
            "working": ["begun"],
            "failed": ["failed"],
            "received_at": "at",
        },
        lambda database, id: database.message_stub.insert_one(
            {**_PRACTICE_STUB, "messageId": id, "created": datetime.now(UTC)}
        ),
        lambda database, id: _set(database.message_stub, {"messageId": id}, offset=1, count=1),
        lambda database, id: database.inbox.insert_one(
            {"message_id": id, "state": "begun", "at": datetime.now(UTC)}
        ),
        lambda database, id: _set(database.inbox, {"message_id": id}, state="done"),
        lambda number: f"m:{number}%🚚",
        server="mongodb",
    ),
}
