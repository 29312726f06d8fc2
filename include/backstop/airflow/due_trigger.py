"""The trigger that starts a duty when it has something to do. It runs in Airflow's triggerer; correctness never rests on it.

One loop looks, for the triggers of all duties (Airflow's shared stream); each decides for its own duty. Light: DAG files make one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Hashable
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

if TYPE_CHECKING:
    from backstop.config.settings import Settings
    from backstop.due.look import Looker

log = logging.getLogger(__name__)
_STREAM = "backstop due work"


class DutyDue(BaseEventTrigger):
    """Fires each time that the duty of this name should run."""

    def __init__(self, duty: str) -> None:
        super().__init__()
        self.duty = duty

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {"duty": self.duty}

    def shared_stream_key(self) -> Hashable:
        return _STREAM

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        """Every duty as it is, twice a second, for as long as anybody wants to know. An error ends nothing: it is looked again."""
        looking = _Looking()
        try:
            while True:
                begun = time.monotonic()
                seen = await asyncio.to_thread(looking.look)
                if seen is not None:
                    yield seen
                await asyncio.sleep(max(0.1, looking.every - (time.monotonic() - begun)))
        finally:
            looking.close()

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        """An event for each look after which the duty should run."""
        from backstop.due.starts import Starts

        starts = Starts()
        async for seen in shared_stream:
            if starts.now(seen[self.duty], time.monotonic()):
                yield TriggerEvent({"due": self.duty})

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """For a triggerer that shares no streams."""
        async for event in self.filter_shared_stream(self.open_shared_stream({})):
            yield event


class _Looking:
    """A looker over the settings as they are now: a file that has changed is read again."""

    every = 1.0

    def __init__(self) -> None:
        self._settings: Settings | None = None
        self._looker: Looker | None = None
        self._failing = False

    def look(self) -> Any:
        """As `Looker.look`; None also where the settings cannot be read."""
        from backstop.airflow.control_room import current_settings, url_from_airflow
        from backstop.config.connections import Connections
        from backstop.due.look import EVERY, Looker

        try:
            settings = current_settings()
            if self._looker is None or settings is not self._settings:
                self.close()
                self._looker = Looker(settings, Connections(resolver=url_from_airflow))
                self._settings = settings
            seen = self._looker.look()
        except Exception as error:  # noqa: BLE001 - whatever it is, the trigger goes on
            self.every = 30.0
            if not self._failing:
                log.warning("backstop: due work is not looked for: %s", type(error).__name__)
            self._failing = True
            return None
        self._failing, self.every = False, EVERY
        return seen

    def close(self) -> None:
        if self._looker is not None:
            self._looker.close()
        self._looker = None
