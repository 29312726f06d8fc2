"""Start a test's PostgreSQL from a copy of one data directory: `initdb` would take a second of CPU for every file."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from backstop_lab.servers.postgres import Postgres

MakeData = Callable[[Postgres, tuple[str, ...], tuple[int, int] | None], None]


def copied_data(template: Path, initdb: MakeData) -> MakeData:
    """`Postgres._make_data` that copies the directory at `template`; the first caller of all workers makes it.

    The template's password comes with its data: it replaces the one that the server would have generated.
    """

    def make_data(server: Postgres, prefix: tuple[str, ...], owner: tuple[int, int] | None) -> None:
        source = template / server._bin.parent.name
        template.mkdir(parents=True, exist_ok=True)
        template.chmod(0o711)
        with open(template / "turn", "w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            if not (source / "done").exists():
                source.mkdir(exist_ok=True)
                source.chmod(0o711)
                first = Postgres(source, version="18" if source.name.endswith("18") else "16")
                initdb(first, prefix, owner)
                (source / "done").touch()
        shutil.rmtree(server.data, ignore_errors=True)
        shutil.copytree(source / "data", server.data)
        if owner is not None:
            for folder, folders, files in os.walk(server.data):
                for name in (".", *folders, *files):
                    os.chown(os.path.join(folder, name), *owner)
        shutil.copy(source / "superuser.password", server.directory / "superuser.password")

    return make_data
