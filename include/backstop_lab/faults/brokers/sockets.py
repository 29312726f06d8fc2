"""Which ports of the loopback a process talks from: how a broker's connection is told to be this process's."""

from __future__ import annotations

import os
from pathlib import Path


def local_ports(pid: int) -> set[int]:
    """The local ports of its TCP connections."""
    inodes: set[str] = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            to = os.readlink(descriptor)
        except FileNotFoundError:
            continue  # closed between the listing and the reading
        if to.startswith("socket:["):
            inodes.add(to[8:-1])
    found: set[int] = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[9] in inodes:
            found.add(int(fields[1].rpartition(":")[2], 16))
    return found
