"""Measures what the broker promises against what Backstop relies on, as far as it tells: facts, one a line."""

from __future__ import annotations

from collections.abc import Sequence

from backstop.brokers.activemq.names import Names
from backstop.brokers.activemq.read_progress import ProgressReader
from backstop.brokers.protocol import Finding


def measure_durability(
    reader: ProgressReader, names: Names, topics: Sequence[str]
) -> list[Finding]:
    """Persistence, limits, time stamps, the scheduler, dead-letter queues, and each topic. BrokerUnavailable if away."""
    beans = reader.jolokia
    broker = beans.read(
        beans.bean(),
        ("Persistent", "Slave", "BrokerVersion", "StorePercentUsage", "MemoryPercentUsage"),
    )
    findings = [
        _persistent(
            broker,
            beans.read(beans.bean("service=PersistenceAdapter", "instanceName=*"), ("Name",)) or {},
        )
    ]
    full = max(int(broker["StorePercentUsage"]), int(broker["MemoryPercentUsage"]))
    findings.append(
        Finding(
            "room",
            full < 80,
            f"store or memory {full} % full",
            ""
            if full < 80
            else "A full broker takes no messages, and shows a browser only a part of its queues: make room.",
        )
    )
    findings += [_stamps(reader), _scheduler(reader)]
    queues = beans.queues()
    unknown = [
        name
        for name in sorted(queues)
        if name not in names.shared_dead_letter_queues()
        and names.source_of_dead_letters(name) is None
        and _is_dlq(reader, name)
    ]
    findings.append(
        Finding(
            "dead-letter queues",
            not unknown,
            "those the broker marks as such are the ones of the settings"
            if not unknown
            else f"not in the settings: {unknown[:5]}",
            "" if not unknown else "Name them in the broker's option dead_letters.",
        )
    )
    for topic in topics:
        there = reader.there(topic)
        of_groups = len(reader.group_queues(topic)) if names.has_group else 1
        good = there and of_groups > 0
        says = f"{of_groups} queues of groups" if there else "it is not there"
        do = (
            ""
            if good
            else "Let each group subscribe once, or make its queue: what is sent before is not kept for it."
        )
        findings.append(Finding(f"topic {topic}", good, says, do))
    return findings


def _persistent(broker: dict[str, object], adapters: dict[str, object]) -> Finding:
    kinds = ", ".join(
        sorted(
            str(one.get("Name", "")).partition("[")[0]
            for one in adapters.values()
            if isinstance(one, dict)
        )
    )
    good = broker["Persistent"] in (True, "True", "true") and bool(kinds)
    says = f"ActiveMQ {broker['BrokerVersion']}, store {kinds or 'none'}; whether it syncs at each commit cannot be read"
    return Finding(
        "store", good, says, "" if good else "Set persistent=true: a restart forgets every message."
    )


def _stamps(reader: ProgressReader) -> Finding:
    good = reader.stamps()
    return Finding(
        "time stamps",
        good,
        "the broker writes its own time on every message"
        if good
        else "a message keeps the time that its client wrote",
        "" if good else "Add <timeStampingBrokerPlugin/> to the broker's plugins.",
    )


def _scheduler(reader: ProgressReader) -> Finding:
    waiting = reader.scheduled()
    return Finding(
        "scheduler",
        waiting == 0,
        "no message waits in it"
        if not waiting
        else f"{waiting} messages wait in it, and it does not say whose",
        ""
        if not waiting
        else "Let clients redeliver instead of the broker's plugin, or set the option redelivery: broker.",
    )


def _is_dlq(reader: ProgressReader, queue: str) -> bool:
    found = reader.jolokia.read(reader.jolokia.queue_bean(queue), ("DLQ",))
    return bool(found and found["DLQ"])
