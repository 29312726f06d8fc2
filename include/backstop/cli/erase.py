"""`backstop erase`: empty the contents of named messages, where Backstop keeps them."""

from __future__ import annotations

from typing import Annotated

import typer

from backstop.cli import context, out


def erase(
    topic: Annotated[str, typer.Option("--topic", help="The topic.")],
    id_: Annotated[list[str], typer.Option("--id", help="A message's id; may be repeated.")],
    why: Annotated[str, typer.Option("--why", help="The reason; it is kept.")] = "",
    by: Annotated[
        str | None, typer.Option("--by", help="Who asks; default: the name you are logged in with.")
    ] = None,
    as_json: out.Json = False,
) -> None:
    """Empty stubs, dead letters and edits of finished messages; ids, hashes, who and why stay. It cannot be undone."""
    from backstop.control.speaker import speaker
    from backstop.retention.erase import NOT_REACHED
    from backstop.retention.erase import erase as empty

    settings, known = context.load_settings(), context.connections()
    with context.control(settings, known) as conn:
        erased = empty(settings, known, conn, topic, id_, speaker(conn, by, out.who()), why)
    if as_json:
        out.document({"erased": erased, "not_reached": NOT_REACHED})
        return
    for one in erased:
        out.line(str(one))
    out.line("Not reached from here:")
    for place in NOT_REACHED:
        out.line(f"  {place}")
