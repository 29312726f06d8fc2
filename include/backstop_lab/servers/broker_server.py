"""What the embedded platform asks of a server of any broker."""

from __future__ import annotations

from typing import Protocol


class BrokerServer(Protocol):
    """A broker of the embedded platform: a child process over one folder."""

    name: str

    @property
    def running(self) -> bool: ...

    port: int
    """Where clients reach it."""

    @property
    def pid(self) -> int | None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def end_leftovers(self) -> None: ...

    def url(self) -> str:
        """The connection's text, with an administrator's login."""
        ...

    def for_duties(self) -> str:
        """The connection as producers and Backstop have it."""
        ...

    def for_airflow(self) -> str:
        """The same as the value of AIRFLOW_CONN_..."""
        ...
