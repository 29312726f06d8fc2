"""Is this too much to resend without asking? (pure) Lost logs look just like a mass loss of messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Radius:
    """One topic and group over the sliding window: deliveries to resend, and deliveries newly CONFIRMED."""

    eligible: int
    newly_confirmed: int

    @property
    def share(self) -> float:
        """The part of the window's finished deliveries that would be resent, between 0 and 1."""
        total = self.eligible + self.newly_confirmed
        return self.eligible / total if total else 0.0


def too_wide(radius: Radius, share: float, floor: int) -> bool:
    """True: send nothing, ask a person. Fewer than `floor` deliveries never ask."""
    return radius.eligible >= floor and radius.share > share
