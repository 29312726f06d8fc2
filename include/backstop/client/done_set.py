"""Remember which offsets of a queue are finished, exactly: a low watermark and the intervals above it.

Its size is the number of gaps, whatever the number of messages. It spares the database questions whose answer is known;
the log's unique key remains the proof.
"""

from bisect import bisect_right


class DoneSet:
    """The finished offsets of one queue in one epoch. Not shared between threads.

    Everything below `watermark` is finished. `starts` and `ends` are the intervals above it, half open, in order and
    neither overlapping nor touching.
    """

    __slots__ = ("_ends", "_starts", "watermark")

    def __init__(self, watermark: int = 0) -> None:
        self.watermark = watermark
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __contains__(self, offset: int) -> bool:
        if offset < self.watermark:
            return True
        place = bisect_right(self._starts, offset) - 1
        return place >= 0 and offset < self._ends[place]

    @property
    def gaps(self) -> int:
        """The number of intervals of unfinished offsets below the highest finished one: its size."""
        return len(self._starts)

    def add(self, offset: int) -> None:
        """One offset is finished."""
        self.add_range(offset, offset + 1)

    def add_range(self, start: int, end: int) -> None:
        """All offsets from `start` up to, without, `end` are finished: also those that a fetch passed over."""
        start = max(start, self.watermark)
        if end <= start:
            return
        # The intervals that overlap or touch it become one.
        first = bisect_right(self._ends, start - 1)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        if start == self.watermark:
            self.watermark = end
            del self._starts[:last], self._ends[:last]
        else:
            self._starts[first:last] = [start]
            self._ends[first:last] = [end]
