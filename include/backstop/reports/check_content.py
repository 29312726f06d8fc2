"""Compares a new content of a message with its topic's schema, or with the contents of messages like it."""

from __future__ import annotations

from backstop.config.content_schema import content_schema
from backstop.evidence.sources import Sources
from backstop.model.errors import ConfigurationError, Unavailable
from backstop.model.records import Key
from backstop.triage.decide.check_content import ContentCheck, ContentFinding, check_content

_BESIDE = 20
_LARGEST = 256 * 1024
"""Bytes of a content that is read to compare with."""


def check_new_content(
    sources: Sources, topic: str, message_id: str, content: bytes
) -> ContentCheck:
    """Reads the message's present content, and of other messages where the topic has no schema; what does not answer, and a schema
    that cannot be used, are findings."""
    settings = sources.settings
    key, old, beside = Key(topic, message_id), None, list[bytes]()
    findings: list[ContentFinding] = []
    schema = None
    try:
        schema = content_schema(settings, topic)
    except ConfigurationError as error:
        findings.append(ContentFinding("warning", "", error.what))
    for shard in settings.producers:
        try:
            store = sources.shard(shard)
            if (now := store.contents([key]).get(key)) is None:
                continue
            old = now.content
            if schema is None:
                beside = store.contents_beside(key, _BESIDE, _LARGEST)
            break
        except Unavailable as error:
            findings.append(
                ContentFinding("warning", "", f"shard {shard} did not answer: {error.what}")
            )
    else:
        findings.append(
            ContentFinding("warning", "", "No shard that answered has the message's stub.")
        )
    checked = check_content(content, old, beside, schema)
    return ContentCheck((*findings, *checked.findings), checked.compared_with)
