"""Where is my message?"""

from backstop.airflow.console import models as m
from backstop.airflow.console.parameters import (
    MessageId,
    Routes,
    TopicName,
    Visiting,
    reading_stores,
)

# No postponed annotations: FastAPI and Pydantic read them.


class FoundMessage(m.Answer):
    """A message that a search found."""

    topic: str
    message_id: str
    found_in: list[str]


class Found(m.Answer):
    """What a search found, and what could not be searched."""

    messages: list[FoundMessage]
    searched: list[str]
    unreachable: dict[str, str]


def find_messages(visited: Visiting, text: MessageId) -> Found:
    """The messages that a text names: an id, a message key, an ordering key, or a broker's id; in the control database, and on
    every shard, of the topics that you see. A broker's id is searched for in messages of the last day, when nothing else has it.
    """
    from backstop.reports import find_message

    with reading_stores(visited) as sources:
        found = find_message.find_messages(
            visited.conn, sources, visited.sight, visited.topics, text
        )
    messages = [
        FoundMessage(topic=topic, message_id=name, found_in=places)
        for (topic, name), places in sorted(found.places.items())
    ]
    return Found(messages=messages, searched=found.searched, unreachable=found.unreachable)


def show_message(visited: Visiting, topic: TopicName, id: MessageId) -> m.Story:
    """Where is my message? Reads every store and broker that may know of it, and gives the verdict of this moment."""
    visited.require_sees(topic)
    from backstop.airflow.console.timeline import story_of
    from backstop.evidence.judge_by_key import Judge
    from backstop.reports.story import tell

    with (
        reading_stores(visited) as sources,
        Judge(visited.settings, visited.room.connections, visited.conn, sources) as judge,
    ):
        [story] = tell(judge, visited.conn, topic, [id])
    return story_of(story, [visited.resend(topic, [id]), visited.read_contents(topic)])


ROUTES: Routes = (
    ("GET", "/messages", find_messages),
    ("GET", "/message", show_message),
)
