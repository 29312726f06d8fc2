"""Read what a received copy says of itself: its id, for whom it is, which content it carries."""

from dataclasses import dataclass

from backstop.brokers.protocol import Received
from backstop.client.check_message import check_key
from backstop.leases.lease import Arrival, payload_hash
from backstop.model.errors import ContractBroken
from backstop.model.read_json import read_json
from backstop.model.records import EPOCH_BYTES, GROUPS_HEADER, SEND_HEADER, VERSION_HEADER
from backstop.model.storable_text import fits


@dataclass(frozen=True, slots=True)
class Copy:
    """A received copy whose headers were understood."""

    received: Received
    arrival: Arrival
    groups: frozenset[str] | None
    """The groups it is for; null: all."""

    def is_for(self, group: str) -> bool:
        return self.groups is None or group in self.groups


def read_headers(received: Received) -> Copy:
    """Raises ContractBroken when the copy has no usable id, a header of ours that cannot be read, or what no database holds."""
    message = received.message
    check_key(message.topic, message.message_id)
    if received.position is not None:
        check_holdable("epoch", received.position.epoch, EPOCH_BYTES)
    check_holdable("tag", message.tag or "")
    arrival = Arrival(
        message.topic,
        message.message_id,
        payload_hash(message.content),
        _version(message.headers.get(VERSION_HEADER)),
        received.position,
        resent=message.headers.get(SEND_HEADER, "1") != "1",
    )
    return Copy(received, arrival, _groups(message.headers.get(GROUPS_HEADER)))


def check_holdable(what: str, text: str, longest: int | None = None) -> None:
    """A foreign program wrote it: the log, or a parked key, could not keep it, and its queue would stand still.

    Raises ContractBroken.
    """
    if not fits(text, longest):
        bound = "" if longest is None else f", or more than {longest} bytes"
        raise ContractBroken(
            f"Its {what} has a NUL or half of a surrogate pair{bound}.",
            unaffected="The message was not processed and not acknowledged.",
            next_step="Look for it in the group's dead-letter queue, and fix the program that sent it.",
        )


def _groups(text: str | None) -> frozenset[str] | None:
    if text is None:
        return None
    try:
        named = read_json(text)
    except ValueError as error:
        raise _broken(GROUPS_HEADER, "is not JSON") from error
    if not isinstance(named, list) or not named or not all(isinstance(name, str) for name in named):
        raise _broken(GROUPS_HEADER, "is not an array of group names")
    return frozenset(named)


def _version(text: str | None) -> int:
    if text is None:
        return 1
    if not (text.isascii() and text.isdigit() and 1 <= len(text) <= 9 and int(text) >= 1):
        raise _broken(VERSION_HEADER, "is not a whole number from 1 on")
    return int(text)


def _broken(header: str, why: str) -> ContractBroken:
    return ContractBroken(
        f"The header {header!r} {why}.",
        unaffected="The message was not processed and not acknowledged.",
        next_step="Look for it in the group's dead-letter queue, and fix the program that sent it.",
    )
