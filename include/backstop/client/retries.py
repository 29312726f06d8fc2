"""How often and how soon a failed head is tried again."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Retries:
    """How a failed head is tried again in place."""

    attempts: int = 3
    """Then its key is parked."""
    backoff: timedelta = timedelta(seconds=1)
    """Before the second try, doubled before each further one."""
    longest: timedelta = timedelta(seconds=30)
    """Also between two tries of a downstream that is away."""

    def after(self, failures: int) -> float:
        """Seconds before the next try."""
        return min(
            self.longest.total_seconds(),
            self.backoff.total_seconds() * 2.0 ** min(failures - 1, 30),
        )
