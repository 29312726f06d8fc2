"""A service of docker-compose.yaml in namespaces of its own, as an engine would start it: its mounts,
secrets, user, capabilities, environment, host name and networks. It needs root, util-linux and iproute2.

Namespaces cannot show limits of memory, CPU and processes (they are cgroups), seccomp and published ports.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compose_file import ROOT
from images import Image, machine_programs

from backstop_lab.servers.child import Child, descendants

GRANTED = (
    "chown",
    "dac_override",
    "fowner",
    "fsetid",
    "kill",
    "setgid",
    "setuid",
    "setpcap",
    "net_bind_service",
    "net_raw",
    "sys_chroot",
    "mknod",
    "audit_write",
    "setfcap",
)
"""The capabilities of a container for which the file names none."""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


class Container:
    """One container. `volumes` and `secrets` are the folders of the named volumes and of the secrets' files."""

    def __init__(
        self,
        name: str,
        service: Mapping[str, Any],
        image: Image,
        folder: Path,
        volumes: Path,
        secrets: Path,
        net: int,
    ) -> None:
        self.name, self.service, self.image = name, service, image
        self.folder, self.volumes, self.secrets, self.net = folder, volumes, secrets, net
        self.child = Child(name, folder.parent / f"{name}.log")
        for made in ("etc", "box"):
            (folder / made).mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        (self.folder / "enter.sh").write_text("\n".join(self._script()) + "\n")
        words = [
            f"--net=/proc/{self.net}/ns/net",
            "/usr/bin/unshare",
            "--mount",
            "--pid",
            "--uts",
            "--ipc",
        ]
        words += ["--fork", "--kill-child", "/bin/bash", str(self.folder / "enter.sh")]
        self.child.start(["/usr/bin/nsenter", *words], env=self.environment)

    def run(self, *argv: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        """A command inside, as `docker exec` runs it."""
        process = next(iter(descendants(self.child.pid or 0)), None)
        if process is None:
            return subprocess.CompletedProcess(argv, 125, "", "not running")
        inside = [
            "--mount",
            "--pid",
            "--net",
            "--uts",
            "--ipc",
            "--root",
            f"--wd=/proc/{process}/cwd",
        ]
        words = ["/usr/bin/nsenter", "--target", str(process), *inside, *self._as_user(), *argv]
        return subprocess.run(
            words,
            env=self.environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    @property
    def healthy(self) -> bool:
        """Whether its own health check passes."""
        kind, *words = self.service["healthcheck"]["test"]
        try:
            return self.run(*words if kind == "CMD" else ("/bin/sh", "-c", *words)).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    @property
    def environment(self) -> dict[str, str]:
        """The image's and the service's variables, and nothing of this machine."""
        own = {key: str(value) for key, value in (self.service.get("environment") or {}).items()}
        return {"HOSTNAME": self.name, "HOME": self._home(), **self.image.environment, **own}

    @property
    def _user(self) -> tuple[int, int]:
        if (written := self.service.get("user")) is None:
            return self.image.user
        uid, _, gid = str(written).partition(":")
        return int(uid), int(gid or 0)

    def _home(self) -> str:
        for line in (self.image.root / "etc/passwd").read_text().splitlines():
            if line.split(":")[2] == str(self._user[0]):
                return line.split(":")[5]
        return "/"

    def _as_user(self) -> list[str]:
        uid, gid = self._user
        dropped, added = self.service.get("cap_drop", []), self.service.get("cap_add", [])
        held = set() if "ALL" in dropped else set(GRANTED) - {one.lower() for one in dropped}
        held |= {one.lower() for one in added}
        bounds = ",".join(["-all", *(f"+{one}" for one in sorted(held))])
        words = [f"--reuid={uid}", f"--regid={gid}", "--clear-groups", f"--bounding-set={bounds}"]
        if "no-new-privileges:true" in self.service.get("security_opt", []):
            words.append("--no-new-privs")
        return ["/usr/bin/setpriv", "--inh-caps=-all", *words, "--"]

    @property
    def command(self) -> list[str]:
        """The file's entry point, or else the image's, and the file's command."""
        return [
            *self.service.get("entrypoint", self.image.entrypoint),
            *self.service.get("command", []),
        ]

    def _mounts(self) -> list[tuple[Path, str, bool]]:
        """Source, target, and whether it is mounted read-only."""
        etc = [
            (self.folder / "etc" / file, f"/etc/{file}", False)
            for file in os.listdir(self.folder / "etc")
        ]
        found = [(path, str(path), True) for path in machine_programs()] + etc
        for written in self.service.get("volumes", []):
            source, target, *how = written.split(":")
            path = ROOT / source if source.startswith(".") else self._volume(source, target)
            found.append((path, target, how == ["ro"]))
        for secret in self.service.get("secrets", []):
            found.append((self.secrets / secret, f"/run/secrets/{secret}", True))
        return found

    def _volume(self, name: str, target: str) -> Path:
        """A named volume; a new one starts with the image's content, owner and mode at that place."""
        volume = self.volumes / name
        if not volume.exists():
            there = self.image.root / target.lstrip("/")
            if there.is_dir():
                shutil.copytree(there, volume, symlinks=True)
                os.chown(volume, there.stat().st_uid, there.stat().st_gid)
            else:
                volume.mkdir(mode=0o755)
        return volume

    def _script(self) -> list[str]:
        """Builds the root in memory over the image, makes it the only one, and becomes the service."""
        box, root = self.folder / "box", self.folder / "box" / "root"
        lines = [
            "set -eu",
            "umask 022",
            "service_path=$PATH; PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            "mount --make-rprivate /",
            f"mount -t tmpfs -o mode=755 tmpfs {q(box)}",
            f"cd {q(box)}; mkdir upper work root",
            f"mount -t overlay -o lowerdir={q(self.image.root)},upperdir=upper,workdir=work overlay root",
            "cd root",
        ]
        for source, target, read_only in self._mounts():
            place = q(f".{target}")
            lines += [
                f"mkdir -p {place}"
                if source.is_dir()
                else f"mkdir -p {q(Path(f'.{target}').parent)}; touch {place}",
                f"mount --bind {q(source)} {place}",
            ]
            if read_only:
                lines.append(f"mount -o remount,bind,ro {place}")
        for target, over in self.image.lower.items():
            lines.append(
                f"mount -t overlay -o ro,lowerdir={q(over)}:{q(target)} overlay {q(f'.{target}')}"
            )
        lines += ["mount -t tmpfs -o mode=755 tmpfs dev"]
        lines += [f"touch dev/{one}; mount --bind /dev/{one} dev/{one}" for one in DEVICES]
        lines += [
            "ln -s /proc/self/fd dev/fd; ln -s fd/0 dev/stdin; ln -s fd/1 dev/stdout; ln -s fd/2 dev/stderr",
            f"mkdir dev/shm; mount -t tmpfs -o mode=1777,size={self.service.get('shm_size', '64m')} tmpfs dev/shm",
        ]
        for place in self.service.get("tmpfs", []):
            lines.append(
                f"mkdir -p {q(f'.{place}')}; mount -t tmpfs -o mode=1777 tmpfs {q(f'.{place}')}"
            )
        lines += [
            "mount -t proc proc proc",
            f"echo {q(self.name)} > proc/sys/kernel/hostname",
            "mount --bind proc/sys proc/sys; mount -o remount,bind,ro proc/sys",
            "mount -t sysfs -o ro sysfs sys",
        ]
        if self.service.get("read_only"):
            lines.append(f"mount -o remount,ro {q(root)}")
        workdir = self.service.get("working_dir", self.image.workdir)
        lines += [
            "pivot_root . .old; cd /; umount -l /.old",
            f"cd {q(workdir)}",
            "PATH=$service_path",
            f"exec /usr/bin/env -u SHLVL -u OLDPWD -u PWD -u _ {shlex.join([*self._as_user(), *self.command])}",
        ]
        return lines


def q(path: Path | str) -> str:
    return shlex.quote(str(path))
