"""Choose how a server that refuses root is run by root: as `nobody`, or as a mapped user that owns root's
files.

`nobody` is the safer choice, because the server then owns nothing but its data. It needs every folder above
the program and the data to be open to others; below a home of mode 0700 a user namespace is what is left.
"""

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path

from backstop.model.errors import ConfigurationError

NAMESPACE_ID = "1000"


@dataclass(frozen=True)
class RunAs:
    """The words before a command, and the (uid, gid) that must own its files; None: nothing to change."""

    prefix: tuple[str, ...] = ()
    owner: tuple[int, int] | None = None


def choose_run_as(program: Path, directory: Path) -> RunAs:
    """What works for this program on this existing directory; files made before keep their way by their
    owner.

    Raises ConfigurationError when root has no way to run it.
    """
    if os.geteuid() != 0:
        return RunAs()
    ways = [
        way
        for way in (as_nobody(), in_user_namespace())
        if way is not None and can_run(way, program, directory)
    ]
    data = directory / "data"
    if data.exists():
        made_by = data.stat().st_uid
        ways = [way for way in ways if (way.owner or (0, 0))[0] == made_by]
    if not ways:
        raise ConfigurationError(
            f"{program.name} refuses root, and neither setpriv nor unshare can run it on {directory}.",
            unaffected="Nothing was started or changed.",
            next_step="Run as a normal user, or open the folders above the project to others (chmod o+x).",
        )
    return ways[0]


def as_nobody() -> RunAs | None:
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        return None
    drop = (
        f"--reuid={nobody.pw_uid}",
        f"--regid={nobody.pw_gid}",
        "--clear-groups",
        "--inh-caps=-all",
    )
    return RunAs(("setpriv", *drop), (nobody.pw_uid, nobody.pw_gid))


def in_user_namespace() -> RunAs:
    return RunAs(("unshare", "--user", f"--map-user={NAMESPACE_ID}", f"--map-group={NAMESPACE_ID}"))


def can_run(way: RunAs, program: Path, directory: Path) -> bool:
    """Whether the program answers with its version and the directory can be entered, run that way."""
    check = 'test -x "$1" && exec "$0" --version'
    try:
        asked = subprocess.run(
            [*way.prefix, "/bin/sh", "-c", check, str(program), str(directory)],
            cwd="/",
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
        )
    except FileNotFoundError:
        return False  # no setpriv or no unshare here
    return asked.returncode == 0
