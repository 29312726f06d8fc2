"""The services of docker-compose.yaml as containers: networks, names, secrets and the order of starting."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import images
from compose_file import as_written, filled
from container import Container

CLONE_NEWNET = 0x40000000
POLL_SECONDS = 3.0
"""Each health check starts a process. The file's own intervals are longer still."""
ENGINE_SECONDS = 840.0
"""Shorter than a test's timeout, so that the reason is shown."""


class Exited(AssertionError):
    """A service ended, or did not become healthy; the text has the last lines of its log."""


class Networks:
    """A bridge for each network, in a network namespace that ends with us and uses none of this machine's
    addresses."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._holders: list[subprocess.Popen[bytes]] = []
        self.host = self._namespace()
        lines = ["link set lo up"]
        for number in range(len(names)):
            lines += [
                f"link add net{number} type bridge",
                f"addr add 10.77.{number}.1/24 dev net{number}",
                f"link set net{number} up",
            ]
        _ip(self.host, lines)

    def close(self) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()

    def join(self, networks: Sequence[str], member: int) -> int:
        """A new network namespace with an address in each network; returns the process that holds it."""
        made = self._namespace()
        outside, inside = [], ["link set lo up"]
        for name in networks:
            number = self._names.index(name)
            there, here = f"v{number}x{member}", f"eth{number}"
            outside += [
                f"link add {there} type veth peer name {here} netns {made}",
                f"link set {there} master net{number} up",
            ]
            inside += [
                f"addr add {self.address(name, member)}/24 dev {here}",
                f"link set {here} up",
            ]
        _ip(self.host, outside)
        _ip(made, inside)
        return made

    def address(self, network: str, member: int) -> str:
        return f"10.77.{self._names.index(network)}.{member + 2}"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread is on every network, as the engine is."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/thread-self/ns/net") as before, open(f"/proc/{self.host}/ns/net") as there:
            assert libc.setns(there.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            try:
                yield
            finally:
                assert libc.setns(before.fileno(), CLONE_NEWNET) == 0, os.strerror(
                    ctypes.get_errno()
                )

    def _namespace(self) -> int:
        # It ends by itself when the pipe to us does.
        holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._holders.append(holder)
        assert holder.stdout and holder.stdout.readline() == b"\n", (
            "no network namespace can be made here"
        )
        return holder.pid


def _ip(namespace: int, lines: Sequence[str]) -> None:
    words = ["nsenter", "--target", str(namespace), "--net", "ip", "-batch", "-"]
    subprocess.run(words, input="\n".join(lines), check=True, text=True, capture_output=True)


class Stack:
    """Starts services and waits for their health; `variables` are those of .env."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        assert os.geteuid() == 0, (
            "Only root may make these namespaces: run this file as root, as CI does."
        )
        self.folder, self.variables = folder, variables
        content = filled(as_written(), variables)
        self.services: dict[str, Any] = content["services"]
        self.networks = Networks(list(content.get("networks", {"default": None})))
        self._members = {name: number for number, name in enumerate(self.services)}
        self._images: dict[str, images.Image] = {}
        self.containers: dict[str, Container] = {}
        (folder / "volumes").mkdir()
        (folder / "secrets").mkdir(mode=0o700)
        for name, secret in content.get("secrets", {}).items():
            file = folder / "secrets" / name
            file.write_text(variables[secret["environment"]])
            file.chmod(0o444)

    def stop(self) -> None:
        for container in self.containers.values():
            container.child.kill()
        self.networks.close()

    def up(self) -> None:
        """Like `docker compose up`: starts each service as soon as its dependencies are ready."""
        waiting, starting, ready = list(self.services), list[str](), set[str]()
        deadline = time.monotonic() + ENGINE_SECONDS
        while waiting or starting:
            for name in [
                one for one in waiting if set(self.services[one].get("depends_on", ())) <= ready
            ]:
                self.start(name)
                waiting.remove(name)
                starting.append(name)
            for name in [one for one in starting if self._is_ready(one)]:
                starting.remove(name)
                ready.add(name)
            if time.monotonic() > deadline:
                raise Exited(
                    f"{starting} did not become healthy:\n" + "".join(map(self.log, starting))
                )
            time.sleep(POLL_SECONDS)

    def start(self, name: str, *, changed: Mapping[str, Any] | None = None) -> Container:
        """Starts a service; with `changed`, a second container of it on the same volumes."""
        service = {**self.services[name], **(changed or {})}
        member, label = self._members[name], name
        if changed:
            member = len(self._members) + len(self.containers)
            label = f"{name}-{member}"
        networks = sorted(service.get("networks", ["default"]))
        net = self.networks.join(networks, member)
        folder = self.folder / label
        volumes, secrets = self.folder / "volumes", self.folder / "secrets"
        made = Container(
            label, service, self._image(service["image"]), folder, volumes, secrets, net
        )
        names = ["127.0.0.1 localhost"]
        for network in networks:
            names.append(f"{self.networks.address(network, member)} {label}")
            names += self._names(network)
        (folder / "etc/hosts").write_text("\n".join(names) + "\n")
        (folder / "etc/hostname").write_text(f"{label}\n")
        (folder / "etc/resolv.conf").touch()
        self.containers[label] = made
        made.start()
        return made

    def log_of_failure(self, container: Container, seconds: float = 300) -> str:
        """The log of a container that must end by itself with an error."""
        if not container.child.wait(seconds) or container.child.returncode == 0:
            raise AssertionError(f"{container.name} did not fail:\n{self.log(container.name)}")
        return container.child.log.read_text()

    def address(self, name: str) -> str:
        """Where `entered` reaches it."""
        network = sorted(self.services[name].get("networks", ["default"]))[0]
        return self.networks.address(network, self._members[name])

    def log(self, name: str) -> str:
        return f"--- {name}\n{self.containers[name].child.last_lines(40)}\n"

    def url(self, login: str, password: str, database: str) -> str:
        return f"postgresql://{login}:{self.variables[password]}@{self.address('postgres')}:5432/{database}"

    def _names(self, network: str) -> list[str]:
        """The names that a network resolves, as lines of /etc/hosts."""
        members = [
            name
            for name, one in self.services.items()
            if network in one.get("networks", ["default"])
        ]
        return [f"{self.networks.address(network, self._members[name])} {name}" for name in members]

    def _is_ready(self, name: str) -> bool:
        """Whether it is healthy or, if it runs once, has succeeded. Raises Exited if it ended otherwise."""
        container = self.containers[name]
        once = container.service["healthcheck"].get("disable", False)
        if container.child.running:
            return not once and container.healthy
        if once and container.child.returncode == 0:
            return True
        raise Exited(f"{name} ended with {container.child.returncode}:\n{self.log(name)}")

    def _image(self, name: str) -> images.Image:
        short = name.partition(":")[0].rpartition("/")[2]
        if short not in self._images:
            self._images[short] = images.IMAGES[short](self.folder / "images" / short)
        return self._images[short]
