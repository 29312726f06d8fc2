"""Run a consumer until SIGTERM or SIGINT: finish or give back what is in flight, within a limit."""

import signal
from _thread import start_new_thread
from datetime import timedelta
from types import FrameType

from backstop.client.consumer import Consumer
from backstop.client.ordered_consumer import OrderedConsumer
from backstop.model.records import Counts


class OutOfTime(KeyboardInterrupt):
    """The limit is over: ends the handler wherever it is, as Ctrl-C does."""


def run_until_signal(
    consumer: Consumer | OrderedConsumer, *, stop_within: timedelta = timedelta(seconds=20)
) -> Counts:
    """Run in the main thread; what was done, by name.

    After the signal what is in handlers is finished. Once `stop_within` is over, a Consumer's transaction is rolled back and its
    lease given back; an OrderedConsumer's handlers end with the process: their messages wait until their leases end, their queues
    until `drain_within` is over. A handler inside one long database call ends only with that call: choose `stop_within` and
    statement_timeout below the platform's own limit. A second SIGTERM changes nothing.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        if not consumer.stopping.is_set():
            # By a thread of its own: `set` needs the event's lock, which whoever was interrupted in `wait` may hold here. `Thread.start`
            # would itself wait for an event.
            start_new_thread(consumer.stopping.set, ())
            signal.setitimer(signal.ITIMER_REAL, stop_within.total_seconds())

    def give_up(number: int, frame: FrameType | None) -> None:
        raise OutOfTime

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, give_up)
    counts = Counts()
    try:
        consumer.run(counts=counts)
    except OutOfTime:
        counts.add("out_of_time")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
    return counts
