"""Writes .env beside docker-compose.yaml: a generated secret for each one that it asks for, mode 0600, never over an old one."""

from __future__ import annotations

import base64
import os
import secrets
import sys
from pathlib import Path

PASSWORDS = (
    "POSTGRES_PASSWORD",
    "AIRFLOW_DB_PASSWORD",
    "BACKSTOP_OWNER_PASSWORD",
    "BACKSTOP_DUTY_PASSWORD",
    "BACKSTOP_APP_PASSWORD",
    "BACKSTOP_CONSUMER_PASSWORD",
    "BACKSTOP_READER_PASSWORD",
    "REDIS_PASSWORD",
    "SPARK_SECRET",
    "AIRFLOW_SECRET_KEY",
    "AIRFLOW_JWT_SECRET",
    "AIRFLOW_ADMIN_PASSWORD",
)


def main(path: Path) -> int:
    lines = {name: f"{name}={secrets.token_hex(24)}" for name in PASSWORDS}
    lines["AIRFLOW_FERNET_KEY"] = (
        f"AIRFLOW_FERNET_KEY={base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()}"
    )
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        old = path.read_text(encoding="utf-8")
        # An empty one counts as missing: Compose refuses it. Of several lines of one name it takes the last.
        values = {
            name: value.strip(" \t\"'")
            for name, _, value in (line.partition("=") for line in old.splitlines())
        }
        missing = [name for name in lines if not values.get(name)]
        print(f"{path} is there already: it was kept, because the databases know its passwords.")
        if missing:
            with path.open("a", encoding="utf-8") as file:
                file.write(
                    ("" if old.endswith("\n") else "\n")
                    + "".join(f"{lines[name]}\n" for name in missing)
                )
            print(
                f"Added what was missing or empty: {', '.join(missing)}; see docs/how-to/upgrade.md."
            )
        return 0
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("\n".join(lines.values()) + "\n")
    print(
        f"{path} holds {len(lines)} generated secrets (mode 0600); the login of Airflow is admin, AIRFLOW_ADMIN_PASSWORD."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".env")))
