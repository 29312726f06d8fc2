"""What docker-compose.yaml and the Dockerfile must hold, read without an engine."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import jsonschema
import pytest
import yaml
from compose_file import FILE, ROOT, Missing, as_written, filled, read_env
from packaging.requirements import Requirement

SERVICES = as_written()["services"]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What `make env` generates."""
    return read_env(written_env(tmp_path_factory.mktemp("env")))


def written_env(folder: Path) -> Path:
    subprocess.run(
        [sys.executable, str(ROOT / "docker" / "write_env.py"), str(folder / ".env")], check=True
    )
    return folder / ".env"


def test_the_file_meets_the_compose_specification(variables: dict[str, str]) -> None:
    schema = json.loads((Path(__file__).parent / "compose-spec.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    content = filled(as_written(), variables)
    assert [error.message for error in validator.iter_errors(content)] == []
    content["services"]["redis"]["restrat"] = "always"
    assert not validator.is_valid(content), "the schema sees nothing"


def test_every_variable_is_a_secret_that_must_be_set_and_make_env_generates_it(
    variables: dict[str, str],
) -> None:
    text = re.sub(r"(?m)^\s*#.*$", "", FILE.read_text()).replace("$$", "")
    used = re.findall(r"\$\{(\w+)([^}]*)\}", text)
    secret = {one["environment"] for one in as_written()["secrets"].values()}
    assert {name for name, _ in used} | secret == set(variables)
    assert [name for name, rest in used if not rest.startswith(":?")] == [], (
        "a variable that may be left empty"
    )
    assert text.count("$") == len(used), "a variable without braces, which may be left empty"
    with pytest.raises(Missing, match="make env"):
        filled(as_written(), {**variables, "REDIS_PASSWORD": ""})


def test_no_secret_has_a_default() -> None:
    """Whatever is named like a secret comes from a variable."""
    for name, service in SERVICES.items():
        for key, value in (service.get("environment") or {}).items():
            if re.search(r"PASSWORD$|SECRET|_KEY$|FERNET", key):
                assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", str(value)), (name, key)
            assert not re.search(r"://[^:/@]*:(?!\$\{)[^@/]+@", str(value)), (name, key)


def test_generated_secrets_are_strong_and_private_and_never_replaced(tmp_path: Path) -> None:
    written = written_env(tmp_path)
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    before = written.read_text()
    values = list(read_env(written).values())
    assert len(set(values)) == len(values) and min(map(len, values)) >= 44
    written_env(tmp_path)
    assert written.read_text() == before
    ignored = subprocess.run(["git", "check-ignore", "-q", ".env"], cwd=ROOT, check=False)
    assert ignored.returncode == 0


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_each_service_is_bounded_restarted_watched_and_closed_to_the_network(name: str) -> None:
    service = SERVICES[name]
    once = service["healthcheck"].get("disable", False)
    assert once == (name == "initialise"), "only what ends by itself has no health check"
    assert service["restart"] == ("no" if once else "unless-stopped")
    limits = service["deploy"]["resources"]["limits"]
    assert set(limits) == {"cpus", "memory"} and service["pids_limit"] > 0
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert "no-new-privileges:true" in service["security_opt"]
    mounted = [volume for volume in service.get("volumes", []) if volume.startswith(".")]
    assert all(volume.endswith(":ro") for volume in mounted)
    assert all((ROOT / volume.split(":")[0]).exists() for volume in mounted)
    assert re.search(r":\d+\.\d+[.\d]*", service["image"]), "an image without a version"


def test_the_broker_refuses_messages_before_the_kernel_ends_it() -> None:
    """A rewrite of its file needs memory, too; whoever is ended over its limit dies again while it loads the file."""
    [most] = re.findall(
        r"--maxmemory (\d+)mb --maxmemory-policy noeviction",
        (ROOT / "docker" / "redis.sh").read_text(),
    )
    assert (
        SERVICES["redis"]["deploy"]["resources"]["limits"]["memory"] == "1g"
        and 256 <= int(most) <= 0.8 * 1024
    )


def test_the_first_users_password_is_a_file_that_only_the_service_which_makes_them_gets() -> None:
    written = as_written()
    assert written["secrets"] == {"airflow-admin": {"environment": "AIRFLOW_ADMIN_PASSWORD"}}
    assert {name for name, service in SERVICES.items() if "secrets" in service} == {"initialise"}
    assert SERVICES["initialise"]["secrets"] == ["airflow-admin"]
    assert (
        SERVICES["initialise"]["environment"]["AIRFLOW_ADMIN_PASSWORD_FILE"]
        == "/run/secrets/airflow-admin"
    )
    assert (
        "${AIRFLOW_ADMIN_PASSWORD" not in FILE.read_text()
        and "SIMPLE_AUTH_MANAGER" not in FILE.read_text()
    )


def test_the_login_is_the_one_that_the_image_installs() -> None:
    manager = as_written()["x-airflow-environment"]["AIRFLOW__CORE__AUTH_MANAGER"]
    assert importlib.util.find_spec(manager.rpartition(".")[0]), "not in the lock"
    assert "backstop-mq[fab] @" in DOCKERFILE
    assert all(
        service["environment"]["AIRFLOW__CORE__AUTH_MANAGER"] == manager
        for name, service in SERVICES.items()
        if name.startswith("airflow-") or name == "initialise"
    )


def test_the_scheduler_mounts_all_that_the_other_airflow_services_mount() -> None:
    """It has a list of its own, which replaces the anchor's, and data checks run there."""
    scheduler = set(SERVICES["airflow-scheduler"]["volumes"])
    for name in ("airflow-api-server", "airflow-dag-processor", "airflow-triggerer"):
        assert set(SERVICES[name]["volumes"]) <= scheduler, name


def test_nothing_starts_before_what_it_needs_is_healthy() -> None:
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            ends = SERVICES[needed]["healthcheck"].get("disable", False)
            assert how["condition"] == (
                "service_completed_successfully" if ends else "service_healthy"
            ), (name, needed)
    assert "initialise" in SERVICES["airflow-api-server"]["depends_on"]
    assert {"initialise", "spark-worker"} <= set(SERVICES["airflow-scheduler"]["depends_on"])


def test_a_command_is_one_that_the_images_entry_point_takes() -> None:
    """Airflow's hands on `airflow`, `bash` and `python`; any other word it takes for a command of `airflow`."""
    first = {
        name: service["command"][0]
        for name, service in SERVICES.items()
        if service["image"].startswith("backstop:") and "entrypoint" not in service
    }
    assert "airflow-scheduler" in first
    assert set(first.values()) <= {"airflow", "bash", "python"}, first


def test_only_the_service_that_migrates_has_the_owners_login() -> None:
    holders = {
        name
        for name, service in SERVICES.items()
        if "BACKSTOP_OWNER_PASSWORD" in json.dumps(service)
    }
    assert holders == {"initialise", "postgres"}


def test_the_owners_login_touches_no_other_programs_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that is mapped has none of our tables beside it, and alerts need no owner."""
    spec = importlib.util.spec_from_file_location("initialise", ROOT / "docker" / "initialise.py")
    assert spec and spec.loader
    initialise = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(initialise)
    settings = yaml.safe_load((ROOT / "backstop.yaml").read_text())
    theirs = {"preset": "cap", "topics": ["refunds"], "time_zone": "UTC"}
    settings["producers"]["theirs"] = {
        "kind": "mapped",
        "connection": "theirs_look",
        "mapping": theirs,
    }
    settings["topics"]["refunds"]["mode"] = "observe"
    settings["notify"] = {"url": "backstop_notify"}
    (tmp_path / "backstop.yaml").write_text(json.dumps(settings))
    (tmp_path / "password").write_text("a password")
    monkeypatch.setenv("BACKSTOP_CONFIG", str(tmp_path / "backstop.yaml"))
    monkeypatch.setenv("AIRFLOW_ADMIN_PASSWORD_FILE", str(tmp_path / "password"))
    for name in SERVICES["initialise"]["environment"]:
        if name.startswith("AIRFLOW_CONN_BACKSTOP_"):
            monkeypatch.setenv(name, f"postgresql://owner:pw@db/{name.lower()}")
    touched: list[tuple[str, str]] = []
    monkeypatch.setattr(initialise.subprocess, "run", lambda *_, **__: None)
    prepared: list[object] = []
    newer: list[str] = []
    monkeypatch.setattr(initialise, "prepare", lambda *_: prepared.append(_))
    monkeypatch.setattr(initialise, "grant", lambda url, role: touched.append((role, url)))
    monkeypatch.setattr(initialise, "is_newer", lambda url, role: role in newer)
    assert initialise.main() == 0
    assert [role for role, _ in touched] == ["control", *["producer"] * 2, *["consumer"] * 2]
    assert not any("theirs" in url for _, url in touched) and len(prepared) == 1
    # After a roll back the others must start, with what the later version made.
    newer.append("producer")
    assert initialise.main() == 0
    assert (len(touched), len(prepared)) == (5, 1)


def test_no_command_line_carries_a_secret() -> None:
    for name, service in SERVICES.items():
        words = [
            *service.get("command", []),
            *service.get("entrypoint", []),
            *service["healthcheck"].get("test", []),
        ]
        assert not [word for word in words if "${" in word], name


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"(?m)^\s*#.*\n", "", DOCKERFILE).replace("\\\n", " ")
    return [
        (line.split(None, 1)[0], line.split(None, 1)[1])
        for line in text.splitlines()
        if line.strip()
    ]


def test_what_the_image_copies_is_there_and_what_it_installs_is_pinned() -> None:
    stages: set[str] = set()
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    sent = {line[1:] for line in ignored if line.startswith("!")}
    assert "*" in ignored and not {".env", ".git", ".venv", ".local"} & sent
    for word, rest in instructions():
        if word == "FROM":
            image, _, stage = rest.partition(" AS ")
            assert re.search(r":\d+[.\d]*-\w+", image), f"{image} has no version"
            stages.add(stage)
        if word == "COPY":
            sources = rest.split()[:-1]
            if sources[0].startswith("--from="):
                assert sources[0].removeprefix("--from=") in stages
            else:
                assert [source for source in sources if not (ROOT / source).exists()] == []
                assert {source.split("/")[0] for source in sources} <= sent, (
                    "the engine is not given it"
                )
        if word == "RUN" and "apt-get install" in rest:
            packages = re.findall(r'"([^"]+)"', rest.split("apt-get install")[1].split("&&")[0])
            assert packages and all("=" in package for package in packages)
        if word == "RUN":
            for install in re.findall(r"pip install (.*?)(?:&&|$)", rest):
                assert "--require-hashes" in install.split(), install


def test_the_image_has_the_airflow_of_the_lock() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert (airflow := re.search(r"(?m)^apache-airflow==([\d.]+)", lock))
    assert f"FROM apache/airflow:{airflow[1]}-" in DOCKERFILE


def locked(*names: str) -> list[Requirement]:
    """What docker/locked.sh takes from the lock."""
    made = subprocess.run(
        ["sh", "docker/locked.sh", *names], cwd=ROOT, check=True, capture_output=True, text=True
    )
    entries = made.stdout.replace("\\\n", "").splitlines()
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
    return [Requirement(entry.partition(" ")[0]) for entry in entries]


def test_the_tools_that_build_and_install_are_entries_of_the_lock_with_all_that_they_need() -> None:
    taken = {
        file: names.split()
        for names, file in re.findall(r"sh locked\.sh ([^>\n]*)> (\S+)", DOCKERFILE)
    }
    build, tools = taken["build.txt"], taken["/dist/tools.txt"]
    needed = {"hatchling"}
    for name in build:
        for requirement in map(Requirement, metadata.requires(name) or []):
            if requirement.marker is None or requirement.marker.evaluate(
                {"extra": "", "python_version": "3.11"}
            ):
                needed.add(requirement.name)
    assert {one.name for one in locked(*build)} == needed == set(build)
    assert [one.name for one in locked(*tools)] == tools == ["uv", "setuptools"]
    assert (
        not any(metadata.requires(name) for name in ("uv",))
        and "--no-build-isolation" in DOCKERFILE
    )
    unknown = subprocess.run(
        ["sh", "docker/locked.sh", "nothing"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert unknown.returncode == 1 and "requirements.lock has no nothing" in unknown.stderr


def small_wheel(folder: Path, name: str, *needs: str) -> Path:
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path := folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nProvides-Extra: airflow\n"
        archive.writestr(
            f"{info}/METADATA", head + "".join(f"Requires-Dist: {need}\n" for need in needs)
        )
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.mark.parametrize(
    ("lock", "refused"),
    [
        ("needed==1.0 --hash=sha256:{right}\n", None),
        ("needed==1.0 --hash=sha256:{wrong}\n", "Hash mismatch"),
        ("other==1.0 --hash=sha256:{right}\n", "no trusted hash"),
    ],
)
def test_the_image_installs_nothing_without_its_hash_in_the_lock(
    tmp_path: Path, lock: str, refused: str | None
) -> None:
    """The Dockerfile's own command, on two small wheels: ours, and one that it needs."""
    (dist := tmp_path / "dist").mkdir()
    (index := tmp_path / "index").mkdir()
    small_wheel(dist, "backstop_mq", "needed==1.0; extra == 'fab'")
    right = hashlib.sha256(small_wheel(index, "needed").read_bytes()).hexdigest()
    (dist / "requirements.lock").write_text(lock.format(right=right, wrong="0" * 64))
    (run,) = [rest for word, rest in instructions() if word == "RUN" and "uv pip install" in rest]
    command = run[run.index('wheel="$(') : run.index("&& ln -s")].replace("/tmp/dist", str(dist))
    uv = Path(sys.executable).parent / "uv"
    here = f"--offline --no-index --find-links {index} --target {tmp_path}/site"
    command = command.replace("uv pip install", f"{uv} pip install {here}")
    done = subprocess.run(
        ["bash", "-ec", command], check=False, capture_output=True, text=True, timeout=300
    )
    installed = (tmp_path / "site" / "needed-1.0.dist-info").exists()
    assert (done.returncode == 0, installed) == (
        (True, True) if refused is None else (False, False)
    ), done.stderr
    assert refused is None or refused in done.stderr


def test_only_the_scheduler_reaches_every_database_and_pages_only_read() -> None:
    logins = {
        name: {
            key.removeprefix("AIRFLOW_CONN_BACKSTOP_").lower(): str(value)
            .partition("//")[2]
            .partition(":")[0]
            for key, value in (service.get("environment") or {}).items()
            if key.startswith("AIRFLOW_CONN_BACKSTOP_") and str(value).startswith("postgresql:")
        }
        for name, service in SERVICES.items()
    }
    everywhere = {"control", "producer_a", "producer_b", "consumer_billing", "consumer_shipping"}
    assert {name: login for name, login in logins.items() if login} == {
        "initialise": dict.fromkeys(everywhere, "backstop_owner"),
        "airflow-scheduler": dict.fromkeys(everywhere, "duty"),
        # It tells of failed runs.
        "airflow-dag-processor": {"control": "duty"},
        "airflow-api-server": {"control": "reader"},
        # It looks for due work.
        "airflow-triggerer": dict.fromkeys(everywhere, "duty"),
    }


def test_a_service_reaches_what_it_names_and_a_spark_worker_what_its_tasks_need() -> None:
    """A worker is in one network, because it listens at one address, so its network holds what its tasks read."""
    networks = {name: set(service["networks"]) for name, service in SERVICES.items()}
    assert set.union(*networks.values()) == set(as_written()["networks"])
    reach = {
        name: {other for other in SERVICES if other != name and networks[name] & networks[other]}
        for name in SERVICES
    }
    for name, service in SERVICES.items():
        said = json.dumps(
            [service.get("environment"), service.get("command"), service["healthcheck"]]
        )
        named = {
            other
            for other in SERVICES
            if other != name and re.search(rf"(?<![\w-]){other}(?![\w-])", said)
        }
        assert named <= reach[name], name
    assert reach["spark-worker"] == {"spark-master", "airflow-scheduler", "postgres", "redis"}
    assert networks["spark-worker"] == {"spark"}
    pages = {"airflow-api-server", "airflow-dag-processor"}
    assert not pages & (reach["redis"] | reach["spark-master"] | reach["spark-worker"])
    assert "airflow-triggerer" not in reach["spark-master"] | reach["spark-worker"]
    # The driver is in several networks: the worker calls it by its name, and it listens in all of them.
    conf = json.loads(SERVICES["airflow-scheduler"]["environment"]["AIRFLOW_CONN_SPARK_DEFAULT"])[
        "extra"
    ]["conf"]
    assert (
        conf["spark.driver.host"] == "airflow-scheduler"
        and conf["spark.driver.bindAddress"] == "0.0.0.0"
    )


def test_each_volume_of_our_image_is_mounted_on_a_folder_of_the_services_user() -> None:
    """A new volume takes the owner of that folder in the image; without one it would be root's."""
    runs = [rest for word, rest in instructions() if word == "RUN"]
    made = [
        one for rest in runs for one in re.findall(r"install -d -o airflow -g root ([^&]*)", rest)
    ]
    ours = {*" ".join(made).split(), "/opt/airflow/logs"}
    for name, service in SERVICES.items():
        if not service["image"].startswith("backstop:"):
            continue
        named = {
            volume.split(":")[1]
            for volume in service.get("volumes", [])
            if not volume.startswith(".")
        }
        assert named <= ours, name
    scheduler = SERVICES["airflow-scheduler"]
    assert f"proofs:{scheduler['environment']['BACKSTOP_PROOFS']}" in scheduler["volumes"]


def test_who_works_who_looks_for_work_and_who_makes_topics_reach_the_broker_and_nobody_else() -> (
    None
):
    holders = {
        name
        for name, service in SERVICES.items()
        if "AIRFLOW_CONN_BACKSTOP_BROKER" in (service.get("environment") or {})
    }
    assert holders == {"initialise", "airflow-scheduler", "airflow-triggerer"}


def test_an_old_env_keeps_its_secrets_and_gets_those_that_are_new(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    script = [sys.executable, str(ROOT / "docker" / "write_env.py"), str(file)]
    subprocess.run(script, check=True)
    whole = file.read_text()
    file.write_text(
        "".join(line for line in whole.splitlines(keepends=True) if "READER" not in line)
    )
    subprocess.run(script, check=True)
    assert sorted(line.partition("=")[0] for line in file.read_text().splitlines()) == sorted(
        line.partition("=")[0] for line in whole.splitlines()
    )
    kept = [line for line in whole.splitlines() if "READER" not in line]
    assert file.read_text().splitlines()[:-1] == kept and file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("left", ["REDIS_PASSWORD=", 'REDIS_PASSWORD=""'])
def test_a_secret_that_was_left_empty_is_generated(tmp_path: Path, left: str) -> None:
    """Compose refuses an empty one, and says to run `make env`."""
    file = written_env(tmp_path)
    kept = read_env(file)
    kept.pop("REDIS_PASSWORD")
    file.write_text(re.sub(r"(?m)^REDIS_PASSWORD=.*$", left, file.read_text()))
    made = read_env(written_env(tmp_path))
    assert filled(as_written(), made) and file.stat().st_mode & 0o777 == 0o600
    assert len(made.pop("REDIS_PASSWORD")) >= 44 and made == kept
    whole = file.read_text()
    assert written_env(tmp_path).read_text() == whole, "it is there now"


def test_images_are_pinned_by_the_digests_that_the_registry_names_or_not_at_all(
    tmp_path: Path,
) -> None:
    """With a stand-in for Docker: no registry is reached here."""
    files = [
        shutil.copy(FILE, tmp_path / FILE.name),
        shutil.copy(ROOT / "docker" / "Dockerfile", tmp_path),
    ]
    docker = tmp_path / "docker"

    def pin(answer: str) -> subprocess.CompletedProcess[str]:
        docker.write_text(f'#!/bin/sh\necho "$4" >> {tmp_path}/asked\n{answer}\n')
        docker.chmod(0o755)
        return subprocess.run(
            [sys.executable, str(ROOT / "docker" / "pin_digests.py"), *map(str, files)],
            env={"PATH": f"{tmp_path}:{os.defpath}"},
            check=False,
            capture_output=True,
            text=True,
        )

    before = [Path(file).read_text() for file in files]
    for answer in ("exit 1", "echo latest"):
        refused = pin(answer)
        assert refused.returncode == 1 and "Nothing was written" in refused.stderr
    assert [Path(file).read_text() for file in files] == before
    for digit in "12":
        (tmp_path / "asked").unlink()
        pinned = pin(f"echo sha256:{digit * 64}")
        assert pinned.returncode == 0, pinned.stderr
        after = [Path(file).read_text() for file in files]
        bare = [re.sub(r"@sha256:\w+", "", text) for text in before]
        assert [text.replace(f"@sha256:{digit * 64}", "") for text in after] == bare
    asked = (tmp_path / "asked").read_text().split()
    assert asked == sorted(
        {rest.split()[0].partition("@")[0] for word, rest in instructions() if word == "FROM"}
        | {
            service["image"].partition("@")[0]
            for service in SERVICES.values()
            if "build" not in service
        }
    )
    assert sum(text.count(f"@sha256:{'2' * 64}") for text in after) == len(asked) == 4
