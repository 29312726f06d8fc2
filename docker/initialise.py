"""Brings the databases to the versions of this image, gives each role its privileges, makes topics and groups; then ends.

The only process that holds the owner's login. Safe to run again: it runs at each `docker compose up`, before all others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from backstop.config.connections import Connections
from backstop.config.load import load
from backstop.errors import BackstopError
from backstop.private_file import write_private
from backstop.schema.migrate import grant
from backstop.schema.prepare import prepare


def main() -> int:
    subprocess.run(["airflow", "db", "migrate"], check=True)
    # Airflow's simple login, for a machine of one's own: the api-server reads the password from a file that it shares with us.
    login = {"admin": os.environ["AIRFLOW_ADMIN_PASSWORD"]}
    write_private(Path(os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"]), json.dumps(login))
    try:
        settings, connections = load(), Connections()
        urls = {ref: connections.url(ref) for ref in settings.connection_refs()}
        prepare(settings, urls)
        grant(urls[settings.control], "control")
        for shard in settings.producers.values():
            grant(urls[shard.connection], "producer")
        for store in settings.consumers.values():
            grant(urls[store.connection], "consumer")
    except BackstopError as refused:
        print(refused, file=sys.stderr)
        return refused.exit_code
    print("databases, privileges, topics and groups are ready")
    return 0


if __name__ == "__main__":
    sys.exit(main())
