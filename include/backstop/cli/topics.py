"""`backstop topics`: creates topics and groups at the broker."""

from __future__ import annotations

from typing import Annotated

import typer

from backstop.cli import context, out

app = typer.Typer(help="Topics and groups at the broker: create.", no_args_is_help=True)


@app.callback()
def topics() -> None:
    """Topics and groups at the broker."""


@app.command("create")
def create(
    topic: Annotated[
        list[str] | None, typer.Argument(help="Topics; without any: all of backstop.yaml.")
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", help="With --broker: a consumer group; may be repeated."),
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option(
            "--broker", help="Instead of backstop.yaml: a URL, or env:NAME for the one in $NAME."
        ),
    ] = None,
    queues: Annotated[
        int | None,
        typer.Option(
            "--queues",
            min=1,
            help="4 for a new topic; one that is there keeps its number, or gets more.",
        ),
    ] = None,
) -> None:
    """Create topics and their groups where they are missing; whatever is there stays as it is.

    A new group begins at the start of its topic.
    """
    from backstop.brokers.create_topics import create_topics
    from backstop.brokers.open import open_broker
    from backstop.cli.set_up import create_one
    from backstop.cli.usage_errors import require_known, usage_error

    known = context.connections()
    if broker is not None:
        if not topic:
            raise usage_error(
                "--broker needs topics.",
                "As in: backstop topics create orders --group billing --broker URL",
            )
        create_one(known, topic, group or [], broker, queues)
        out.line(f"{', '.join(topic)}: created, or there already")
        return
    if group:
        raise usage_error(
            "--group goes with --broker.", "The groups of a topic stand in backstop.yaml."
        )
    settings = context.load_settings()
    require_known("topic", topic or (), settings.topics)
    chosen = topic or list(settings.topics)
    wanted = {
        name: {
            one: its.groups
            for one, its in settings.topics.items()
            if its.broker == name and one in chosen
        }
        for name in settings.brokers
    }
    of_broker = {name: topics for name, topics in wanted.items() if topics}
    for name in of_broker:
        known.url(settings.brokers[name].connection)  # an unknown one is refused before any change
    for name, topics in of_broker.items():
        with open_broker(settings, known, name) as opened:
            create_topics(opened, topics, queues)
        for one, groups in topics.items():
            out.line(f"{one} ({name}): created, or there already; groups: {', '.join(groups)}")
