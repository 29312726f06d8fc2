"""`backstop prove`: what became of every message of a window, with an export that can be verified later."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backstop.cli import context, out
from backstop.config.instant import read_instant
from backstop.model.errors import ConfigurationError

if TYPE_CHECKING:
    from backstop.reconcile.prove import Proof

FORMATS = {"both": ("jsonl", "parquet"), "jsonl": ("jsonl",), "parquet": ("parquet",)}


def prove(
    topic: Annotated[
        str | None, typer.Argument(help="The topic; not needed with --verify.")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", help="Stubs created since, as 2026-11-21T02:00Z.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="... and before.")] = None,
    export: Annotated[
        Path | None,
        typer.Option("--export", help="Write the deliveries and a manifest into this folder."),
    ] = None,
    form: Annotated[str, typer.Option("--format", help="jsonl, parquet or both.")] = "both",
    verify: Annotated[
        Path | None, typer.Option("--verify", help="Check the proof in this folder instead.")
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option("--key", help="With --verify: the public key (PEM) of who signed it."),
    ] = None,
    local_spark: Annotated[
        bool,
        typer.Option(
            "--local-spark", help="Spark on this machine, whatever $BACKSTOP_SPARK_MASTER says."
        ),
    ] = False,
    docs: Annotated[
        Path, typer.Option("--docs", help="Where the report of the data checks goes.")
    ] = Path("build/data-docs"),
    as_json: out.Json = False,
) -> None:
    """Was anything lost? Reads every stub of a topic created in a window, and every group's log of it.

    Changes nothing of producers and consumers. Ends with 0: nothing was lost; 1: these were lost; 3: not everything could be
    read; 7: not everything is finished yet.
    """
    if verify is not None:
        _verify(verify, key, as_json)
        return
    if topic is None or start is None or end is None:
        raise _usage_error(
            "A proof needs a topic and a window.",
            "As in: backstop prove orders --from 2026-11-21T02:00Z --to 2026-11-21T03:00Z",
        )
    if form not in FORMATS:
        raise _usage_error(
            f"--format {form}: there is no such format.", f"Name one of: {', '.join(FORMATS)}."
        )
    if export is not None:
        _require_empty(export)
    from backstop.reconcile.answer_proof import EXIT_CODES
    from backstop.reconcile.run_proof import run_proof

    settings, known = context.load_settings(), context.connections()

    def start_spark() -> Any:
        from backstop.spark.session import start_session

        return start_session(
            "backstop prove", "local[*]" if local_spark else None, lakes=settings.has_lakes()
        )

    with out.progress("prove") as say:
        proof = run_proof(
            settings,
            known,
            start_spark,
            context.data_checks(settings, known, docs),
            topic,
            read_instant("--from", start),
            read_instant("--to", end),
            folder=export,
            formats=FORMATS[form],
            say=say,
        )
    if as_json:
        out.document(proof)
    else:
        _show(proof, end)
    raise typer.Exit(EXIT_CODES[proof.answer])


def _show(proof: Proof, asked: str) -> None:
    out.line(proof.sentence)
    if proof.window.end < read_instant("--to", asked):
        out.line(
            "  The window ends earlier than asked: producers may still commit stubs of the time since."
        )
    out.table(
        ("group", "standing", "verdict", "reason", "deliveries"),
        [
            (one.consumer_group, one.standing, one.verdict, one.reason, one.deliveries)
            for one in proof.counts
        ],
    )
    if proof.lost:
        from backstop.reconcile.prove import LOST_SHOWN

        out.table(("lost message", "group", "verdict", "reason"), proof.lost)
        if len(proof.lost) == LOST_SHOWN:
            out.line(f"  The first {LOST_SHOWN}; all of them: --export.")
    out.line(f"  run {proof.run_id}" + (f", exported to {proof.folder}" if proof.folder else ""))


def _require_empty(folder: Path) -> None:
    """Made before all is read: a window may take an hour. OSError where it cannot be."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise _usage_error(f"{folder} is not empty.", "Name a new folder: one proof, one folder.")


def _verify(folder: Path, key: Path | None, as_json: bool) -> None:
    from backstop.reconcile.sign_proof import verify

    try:
        public = None if key is None else key.read_bytes()
    except OSError as error:
        raise _usage_error(
            f"{key} cannot be read: {error.strerror}.", "Name the file of the public key."
        ) from error
    wrong = verify(folder, public)
    if as_json:
        out.document({"agrees": not wrong, "with_key": public is not None, "wrong": wrong})
    for sentence in () if as_json else wrong:
        out.line(sentence)
    if wrong:
        raise typer.Exit(1)
    if not as_json:
        out.line(
            f"The proof in {folder} agrees with itself"
            + (" and with the key." if public else "; no key was given.")
        )


def _usage_error(what: str, next_step: str) -> ConfigurationError:
    return ConfigurationError(what, unaffected="Nothing was read.", next_step=next_step)
