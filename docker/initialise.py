"""Brings the databases to the versions of this image, gives each role its privileges, makes topics, groups and Airflow's first
user; then ends.

The only process that holds the owner's login. Safe to run again: it runs at each `docker compose up`, before all others. It changes no
database of Backstop's when a later version of Backstop made the schema of one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from backstop.cli.migrate import databases
from backstop.config.connections import Connections
from backstop.config.load import load
from backstop.model.errors import BackstopError
from backstop.schema.migrate import grant, is_newer
from backstop.schema.prepare import prepare


def main() -> int:
    password_file = Path(os.environ["AIRFLOW_ADMIN_PASSWORD_FILE"])
    read_password(password_file)  # without one, nothing is changed
    subprocess.run(["airflow", "db", "migrate"], check=True)
    make_admin(password_file, os.environ)
    try:
        settings, connections = load(), Connections()
        # Those with tables of ours alone: other programs' databases, and where alerts go, are no business of the owner's login.
        ours = databases(settings)
        used = [ref for *_, ref in ours] + [its.connection for its in settings.brokers.values()]
        urls = {ref: connections.url(ref) for ref in used}
        newer = [name for role, name, ref in ours if is_newer(urls[ref], role)]
        if newer:  # after a roll back; the later version made topics and privileges, too
            print(f"a later version made the schema of {', '.join(newer)}: nothing was changed")
            return 0
        prepare(settings, urls)
        for role, _, ref in ours:
            grant(urls[ref], role)
    except BackstopError as refused:
        print(refused, file=sys.stderr)
        return refused.exit_code
    print("databases, privileges, topics and groups are ready")
    return 0


def make_admin(password_file: Path, environment: Mapping[str, str]) -> None:
    """Makes Airflow's user `admin`; one who is there already keeps their password.

    Airflow asks for the password twice. Without a terminal it reads standard input, so that no command line shows it.
    """
    password = read_password(password_file)
    command = [
        sys.executable,
        "-m",
        "airflow",
        "users",
        "create",
        "--username",
        "admin",
        "--firstname",
        "First",
        "--lastname",
        "Admin",
        "--email",
        "admin@localhost.localdomain",
        "--role",
        "Admin",
    ]
    subprocess.run(
        command,
        input=f"{password}\n" * 2,
        text=True,
        check=True,
        env=dict(environment),
        start_new_session=True,
    )


def read_password(file: Path) -> str:
    password = file.read_text(encoding="utf-8").strip()
    if not password:
        raise SystemExit(
            f"{file} holds no password: set AIRFLOW_ADMIN_PASSWORD (`make env` does). No user was made."
        )
    return password


if __name__ == "__main__":
    sys.exit(main())
