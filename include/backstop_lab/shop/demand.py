"""What the shop's groups demand of an order, and what they need beside it: the ways in which a message dies of its handler.

Who runs the demo changes the conditions by files in one folder; the ledger gets a line at a message's last delivery.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from backstop.client import Work
from backstop.model.records import Message
from backstop_lab.shop.ledger import Ledger

NOT_JSON, FIELD_MISSING, RULE_REFUSED, DEPENDENCY_DOWN = (
    "not_json",
    "field_missing",
    "rule_refused",
    "dependency_down",
)
CARRIER_IS_DOWN, RULE_IS_MENDED = "carrier-is-down", "rule-is-mended"
"""Files: while the first is there, shipping reaches no carrier; once the second is there, billing knows the right limits."""
ACCOUNT_IS_OPEN = "account-is-open"
"""A file like these: once it is there, the locked account takes the entries that bookkeeping has for it."""
LOCKED = "account-locked"
OLD_LIMIT = 500


class MissingField(ValueError):
    """The order lacks what the group cannot do without."""


class OverLimit(ValueError):
    """The rule about credit says no."""


class Demands:
    """One worker's. `conditions`: the folder of the files; None: all is well, always."""

    def __init__(
        self, group: str, ledger: Ledger, conditions: Path | None, delivery_limit: int | None
    ) -> None:
        self._group, self._ledger, self._limit = group, ledger, delivery_limit
        self._conditions = conditions

    def amount(self, message: Message, work: Work) -> int:
        """The order's amount; raises what the group cannot accept, or cannot do now."""
        try:
            return self._amount(message, work)
        except json.JSONDecodeError:
            self._note(NOT_JSON, message, work)
            raise
        except MissingField:
            self._note(FIELD_MISSING, message, work)
            raise
        except OverLimit:
            self._note(RULE_REFUSED, message, work)
            raise
        except ConnectionError:
            self._note(DEPENDENCY_DOWN, message, work)
            raise

    def _amount(self, message: Message, work: Work) -> int:
        order: dict[str, Any] = json.loads(message.content)
        if self._group == "shipping" and "ship_to" in order and "country" not in order["ship_to"]:
            raise MissingField(
                f"order {order['no']}: ship_to has no field 'country' (customer {order['customer']},"
                f" {len(message.content)} bytes)"
            )
        if (
            self._group == "billing"
            and order["amount"] > OLD_LIMIT
            and not self._is(RULE_IS_MENDED)
        ):
            raise OverLimit(
                f"order {order['no']}: {order['amount']}.00 EUR is above the credit limit of customer {order['customer']},"
                f" {OLD_LIMIT}.00 EUR"
            )
        if self._group == "shipping" and "carrier" in order and self._is(CARRIER_IS_DOWN):
            chance = random.Random(f"{message.message_id} {work.deliveries}")
            raise ConnectionError(
                f"carrier-{chance.randint(1, 9)}.example:{chance.randint(8000, 8999)}"
                f" (10.20.{chance.randint(0, 255)}.{chance.randint(1, 254)}): connection refused"
            )
        amount: int = order["amount"]
        return amount

    def _is(self, condition: str) -> bool:
        return self._conditions is not None and (self._conditions / condition).exists()

    def _note(self, fault: str, message: Message, work: Work) -> None:
        """After this delivery the broker gives up."""
        if self._limit is not None and work.deliveries >= self._limit:
            self._ledger.append(
                fault,
                [message.key],
                consumer_group=self._group,
                detail=f"delivery {work.deliveries}",
            )
