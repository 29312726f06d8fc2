"""Asks a page whether a service is healthy, for the health checks: ends with 0 when it is, with 1 and a reason otherwise.

healthy.py airflow COMPONENT URL   the api-server's own report on a component, which costs one request (`airflow jobs
                                   check` costs the start of an Airflow, every time)
healthy.py spark-master URL        the master is the acting one
healthy.py spark-worker URL        the master counts at least one living worker
"""

from __future__ import annotations

import json
import sys
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener


def main(what: str, *rest: str) -> str | None:
    """Why it is not healthy; null when it is."""
    try:
        # A proxy of the environment has no business between two services.
        with build_opener(ProxyHandler({})).open(rest[-1], timeout=5) as answer:
            page = json.load(answer)
    except (URLError, TimeoutError, ValueError) as error:
        return f"{rest[-1]} gave no answer: {error}"
    if what == "airflow":
        status = (page.get(rest[0]) or {}).get("status")
        return None if status == "healthy" else f"{rest[0]} is {status}"
    if page.get("status") != "ALIVE":
        return f"the master is {page.get('status')}"
    if what == "spark-worker" and not page.get("aliveworkers"):
        return "no worker is alive"
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
