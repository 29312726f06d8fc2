"""Remember which offsets of a queue are finished, exactly: a low watermark and the intervals above it.

Its size is the number of gaps, whatever the number of messages. It spares the database questions whose answer is known;
the log's unique key remains the proof.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable

from backstop.model.errors import ContractBroken

_HEADER, _INTERVAL = struct.Struct(">qI"), struct.Struct(">qq")


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

    @property
    def highest(self) -> int:
        """The highest finished offset; below the first one possible when there is none."""
        return (self._ends[-1] if self._ends else self.watermark) - 1

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

    def intervals(self) -> list[tuple[int, int]]:
        """What is finished above the watermark: from, up to without."""
        return list(zip(self._starts, self._ends, strict=True))

    def to_bytes(self) -> bytes:
        """As it is saved with a commit: 12 bytes, and 16 for each gap."""
        packed = b"".join(_INTERVAL.pack(start, end) for start, end in self.intervals())
        return _HEADER.pack(self.watermark, self.gaps) + packed

    @classmethod
    def from_bytes(cls, saved: bytes) -> "DoneSet":
        """Raises ContractBroken for anything that `to_bytes` does not write."""
        if len(saved) < _HEADER.size:
            raise _broken()
        watermark, gaps = _HEADER.unpack_from(saved)
        if len(saved) != _HEADER.size + gaps * _INTERVAL.size:
            raise _broken()
        done = cls(watermark)
        done._fill(_INTERVAL.iter_unpack(saved[_HEADER.size :]))
        return done

    def _fill(self, intervals: Iterable[tuple[int, ...]]) -> None:
        before = self.watermark
        for start, end in intervals:
            if not before < start < end:
                raise _broken()
            self._starts.append(start)
            self._ends.append(end)
            before = end


def _broken() -> ContractBroken:
    return ContractBroken(
        "A saved set of finished offsets cannot be read.",
        unaffected="Nothing was taken for finished.",
        next_step="Drop it: the log answers for each message.",
    )
