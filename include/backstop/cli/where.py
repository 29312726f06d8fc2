"""`backstop where`: the whole story of a message."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backstop.cli import context, out
from backstop.cli.usage_errors import require_known

if TYPE_CHECKING:
    from backstop.model.records import LogRow
    from backstop.reports.story import MessageHistory

_BATCH = 500


def where(
    topic: Annotated[
        str | None, typer.Argument(help="The topic; with --key every topic when it is left out.")
    ] = None,
    message_id: Annotated[list[str] | None, typer.Argument(help="One or more message ids.")] = None,
    queues: Annotated[
        bool,
        typer.Option("--queues", help="Who owns each of the topic's queues, instead of a message."),
    ] = False,
    file: Annotated[
        Path | None,
        typer.Option("--file", help="A file with one message id a line; - reads stdin."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", help="List the messages with this message key, ordering key, id, or broker id."
        ),
    ] = None,
    as_json: out.Json = False,
) -> None:
    """Show everything about each message: stub, attempts, each group's log and verdict, and what happens next.

    Ends with 1 if a message is unknown, with 3 if a database or broker that may know it did not answer.
    """
    from backstop.model.errors import ConfigurationError
    from backstop.model.id_list import ids_in, read_id_list

    if key is not None:
        if message_id or file is not None or queues:
            raise ConfigurationError(
                "--key excludes message ids, --file and --queues.",
                unaffected="Nothing was read.",
                next_step="Find the message first, then ask where it is by topic and id.",
            )
        _find(topic, key, as_json)
        return
    if topic is None:
        raise ConfigurationError(
            "No topic was given.",
            unaffected="Nothing was read.",
            next_step="Name the topic and one or more message ids, or search all topics with --key.",
        )
    if queues:
        _show_queues(topic, as_json)
        return
    ids = [*(message_id or ()), *(ids_in(read_id_list(str(file))) if file is not None else ())]
    if not ids:
        raise ConfigurationError(
            "No message id was given.",
            unaffected="Nothing was read.",
            next_step="Name one or more, or give --file.",
        )
    settings, known = context.load_settings(), context.connections()
    from backstop.evidence.judge_by_key import Judge
    from backstop.reports.story import tell
    from backstop.spark.session import start_for_lakes

    start_for_lakes(settings)
    stories: list[MessageHistory] = []
    with (
        context.control(settings, known) as conn,
        Judge(settings, known, conn) as judge,
        out.progress("looking") as say,
    ):
        for start in range(0, len(ids), _BATCH):
            say(f"{start} of {len(ids)}")
            batch = tell(judge, conn, topic, ids[start : start + _BATCH])
            # What is stored of a topic that left the settings is shown; else its name is not one.
            if not any(story.found or story.unreachable for story in batch):
                require_known("topic", [topic], settings.topics)
            stories.extend(batch)
            if not as_json:
                for story in batch:
                    _print(story)
    if as_json:
        out.document(stories)
    if any(story.unreachable for story in stories):
        raise typer.Exit(3)
    if not all(story.found for story in stories):
        raise typer.Exit(1)


def _find(topic: str | None, key: str, as_json: bool) -> None:
    """Ends with 1 if nothing has the key, with 3 if a shard that may have it could not be searched."""
    from backstop.evidence.sources import Sources
    from backstop.reports.console import Sight
    from backstop.reports.find_message import find_messages

    settings, known = context.load_settings(), context.connections()
    require_known("topic", [] if topic is None else [topic], settings.topics)
    topics = list(settings.topics) if topic is None else [topic]
    with (
        context.control(settings, known) as conn,
        Sources(settings, known) as sources,
        out.progress("searching"),
    ):
        found = find_messages(conn, sources, Sight(), topics, key)
    messages = [
        {"topic": name, "message_id": message_id, "found_in": places}
        for (name, message_id), places in sorted(found.places.items())
        if name in topics
    ]
    for subject, why in found.unreachable.items():
        print(out.printable(f"not searched: {subject}: {why}"), file=sys.stderr)
    if as_json:
        out.document(
            {
                "messages": messages,
                "searched": found.searched,
                "unreachable": found.unreachable,
            }
        )
    elif messages:
        rows = [[one["topic"], one["message_id"], ", ".join(one["found_in"])] for one in messages]
        out.table(["topic", "message", "found in"], rows)
    else:
        out.line(f"Nothing has this key. Searched: {', '.join(found.searched)}.")
    if found.unreachable:
        raise typer.Exit(3)
    if not messages:
        raise typer.Exit(1)


def _show_queues(topic: str, as_json: bool) -> None:
    from backstop.cli.queues import read_queues
    from backstop.evidence.sources import Sources

    settings, known = context.load_settings(), context.connections()
    require_known("topic", [topic], settings.topics)
    with Sources(settings, known) as sources:
        found = read_queues(sources, topic)
        unreachable = dict(sources.unreachable)
    for subject, why in unreachable.items():
        print(out.printable(f"not answered: {subject}: {why}"), file=sys.stderr)
    if as_json:
        out.document([one._asdict() for one in found])
    elif not found:
        out.line(f"No group owns queues of {topic}: its consumers are not ordered.")
    else:
        out.table(
            ["group", "queue", "state", "owner", "since", "waiting", "oldest waits"],
            [
                [q.group, q.queue, q.state, q.owner, q.since, q.waiting, q.waits_since]
                for q in found
            ],
        )
    if unreachable:
        raise typer.Exit(3)


def _print(story: MessageHistory) -> None:
    from backstop.reports.explain import who_asked

    out.line(f"{story.topic} {story.message_id}", style="bold")
    for subject, why in story.unreachable.items():
        out.line(f"  not answered: {subject}: {why}", style="red")
    if not story.found:
        out.line(
            f"  unknown: nothing has a trace of it. Searched: {', '.join(story.searched)}.",
            style="red",
        )
        out.line()
        return
    if len(story.shards) > 1:
        out.line(
            f"  on more than one shard: {', '.join(story.shards)}; it is not judged", style="red"
        )
    _print_stub(story)
    for delivery in story.deliveries:
        verdict = f"{delivery.verdict} ({delivery.reason})" if delivery.verdict else "no verdict"
        out.line(f"  {delivery.consumer_group}: {verdict}: {delivery.evidence}")
        if delivery.log is not None:
            out.line(f"    log: {_log(delivery.log)}")
        if delivery.next_step:
            out.line(f"    next: {delivery.next_step}")
    for letter in story.letters:
        out.line(f"  {_letter(letter)}")
    for request in story.requests:
        error = f"; {request['error']}" if request["error"] else ""
        out.line(
            f"  request {request['request_id']} for send {request['send_number']} by {who_asked(request)}"
            f" ({request['reason']}): {request['state']}, {out.cell(request['updated_at'])}{error}"
        )
    for case in story.cases:
        became = (
            f", {case['decision']} by {case['decided_by']}: {case['why']}"
            if case["decision"]
            else ""
        )
        out.line(
            f"  case {case['case_id']} ({case['kind']}, {case['consumer_group']}): {case['state']}{became}"
        )
    for made in story.decisions:
        at = out.cell(made["decided_at"])
        out.line(
            f"  {made['consumer_group']}: {made['decision']} by {made['decided_by']} at {at}: {made['why']}"
        )
    for row in story.quarantine:
        out.line(
            f"  quarantined: {row['reason']} in {row['store']}, since {out.cell(row['first_seen_at'])}"
        )
    for row in story.anomalies:
        out.line(
            f"  odd: {row['kind']} {row['consumer_group'] or ''} {row['detail'] or ''} ({row['times']} times)"
        )
    out.line()


def _print_stub(story: MessageHistory) -> None:
    stub = story.stub
    if stub is None:
        out.line("  stub: none on any shard that answered")
        return
    due = f", due {out.cell(stub.next_check_at)}" if stub.status == "pending" else ""
    out.line(
        f"  stub: {stub.status} on {stub.shard}, created {out.cell(stub.created_at)}, {stub.send_count} sends"
        f" ({stub.refusals} refused){due}"
    )
    for attempt in story.attempts:
        to = "all groups" if attempt.groups is None else ", ".join(attempt.groups)
        place = (
            f" at queue {attempt.queue_id} offset {attempt.queue_offset}"
            if attempt.queue_offset is not None
            else ""
        )
        error = f": {attempt.error}" if attempt.error else ""
        out.line(
            f"    send {attempt.send_number} by {attempt.requested_by} to {to} at {out.cell(attempt.started_at)}:"
            f" {attempt.outcome}{place}{error}"
        )
    if story.under_way is not None:
        out.line(
            f"    send {story.under_way} was handed out at {out.cell(stub.attempted_at)} and has not ended"
            f" (counts as unknown from {out.cell(stub.attempt_deadline)} on)"
        )


def _letter(letter: dict[str, Any]) -> str:
    of = f"{letter['consumer_group'] or 'no known group'}"
    died = out.cell(letter["died_at"] or letter["drained_at"])
    parts = [f"dead letter {letter['dead_letter_id']} of {of}, died {died}: {letter['state']}"]
    parts.append(letter["category"] or "not classified yet")
    if letter["decision"]:
        parts.append(
            f"{letter['decision']} by {letter['decided_by'] or 'triage'}: {letter['reason'] or 'no reason given'}"
        )
    if letter["send_number"] is not None:
        parts.append(f"send {letter['send_number']}")
    if letter["case_id"] is not None:
        parts.append(f"case {letter['case_id']}")
    return ", ".join(parts)


def _log(log: LogRow) -> str:
    parts = [f"{log.state}, {log.attempts} attempts"]
    if log.duplicates_stopped:
        parts.append(f"{log.duplicates_stopped} duplicates stopped")
    parts.append(
        f"first received {out.cell(log.first_received_at)}, last moved {out.cell(log.updated_at)}"
    )
    if log.consumed_at is not None:
        parts.append(f"consumed {out.cell(log.consumed_at)}")
    if log.last_error:
        parts.append(f"error: {log.last_error}")
    if log.invalid:
        parts.append(f"INVALID: {log.invalid}")
    return "; ".join(parts)
