"""How much one consumer holds of its queues: bounded as a whole, so that a queue that stands still stops no other."""

from collections.abc import Iterable


def has_room(own: int, of_all: Iterable[int], most: int, queues: int) -> bool:
    """Whether one of so many queues may take more. `own`: what is held of it, `of_all`: of each queue, itself included.

    Below its share of `most` it always may, whatever the others hold; above it, while all together are below `most`. So all
    together hold less than twice as much.
    """
    return own < max(1, most // max(1, queues)) or sum(of_all) < most
