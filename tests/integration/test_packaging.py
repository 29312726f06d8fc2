"""The wheel in fresh environments: the base is light, and an Airflow adopts the DAGs by the lines of the documents."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(sysconfig.get_paths()["purelib"])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


def fresh_environment(folder: Path, wheel: Path) -> Path:
    """A virtual environment that holds the wheel and nothing else; returns its site-packages."""
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = (folder / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def run(folder: Path, code: str, *arguments: str, **environment: str) -> Any:
    """What `code` prints as JSON, run from nowhere with no PYTHONPATH."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "JAVA_HOME") if name in os.environ}
    done = subprocess.run(
        [str(folder / "bin" / "python"), "-c", code, *arguments],
        cwd=folder,
        env={**kept, "HOME": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.rpartition("FACTS")[2])


def test_the_wheel_carries_sql_lua_dags_jobs_and_plugins(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    source = {
        f"backstop/{path.relative_to(ROOT / 'include' / 'backstop')}"
        for path in (ROOT / "include" / "backstop").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    for folder in ("dags", "plugins", "spark_jobs"):
        source |= {f"backstop/{path.relative_to(ROOT)}" for path in (ROOT / folder).glob("*.py")}
    assert source <= held
    assert {Path(name).suffix for name in source} >= {".py", ".sql", ".lua"}
    assert not [name for name in held if "__pycache__" in name]
    # The product alone: no laboratory (backstop_lab), no tests.
    assert {name.split("/")[0] for name in held} == {"backstop", "backstop_mq-0.2.0.dist-info"}


def test_the_base_wheel_needs_two_drivers_and_nothing_else(wheel: Path, tmp_path: Path) -> None:
    site = fresh_environment(tmp_path / "env", wheel)
    for package in ("psycopg2", "psycopg2_binary.libs", "redis", "async_timeout"):
        if (SITE / package).exists():
            (site / package).symlink_to(SITE / package)
    code = """
import json, sys
import backstop.client, backstop.leases, backstop.brokers.redis_streams
ours = {name.split(".")[0] for name in sys.modules}
print("FACTS" + json.dumps([backstop.client.__file__, sorted(ours - set(sys.stdlib_module_names))]))
"""
    where, loaded = run(tmp_path / "env", code)
    assert where.startswith(str(site))
    allowed = {"backstop", "psycopg2", "redis", "async_timeout"}
    assert {name for name in loaded if not name.startswith("_")} <= allowed
    sql = subprocess.run(
        [
            str(tmp_path / "env" / "bin" / "python"),
            "-m",
            "backstop.cli",
            "migrate",
            "--role",
            "producer",
            "--sql",
        ],
        cwd=tmp_path,
        env={"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "CREATE TABLE message_stub" in sql.stdout, "tables need no extra"


def full_environment(folder: Path, wheel: Path) -> Path:
    """The wheel with the project's own libraries beside it, but never its source tree."""
    site = fresh_environment(folder, wheel)
    # A line in a .pth adds the folder without reading the .pth files inside it: the source tree stays out.
    (site / "libraries.pth").write_text(f"{SITE}\n")
    return site


def shell_lines(page: str, heading: str) -> str:
    """What the code blocks under a heading tell a reader to type, without what installs or needs servers: with them
    `test_client_how_to` types the README's."""
    section = re.split(r"^## ", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    (text,) = [part for part in section if part.startswith(f"{heading}\n")]
    blocks = re.findall(r"^ *```(?:sh)?\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    lines = [line.strip() for line in "".join(blocks).splitlines()]
    return "\n".join(line for line in lines if not line.startswith(("pip install", "backstop ")))


def test_an_airflow_adopts_the_dags_by_the_lines_of_the_readme_and_of_the_how_to(
    wheel: Path, tmp_path: Path
) -> None:
    """In a fresh AIRFLOW_HOME, word for word; Airflow skips a file without the word `airflow`."""
    site = full_environment(tmp_path / "env", wheel)
    for page, heading, home in (
        ("README.md", "Adopt it", tmp_path / "readme"),
        ("docs/how-to/airflow.md", "Adopt the DAGs", tmp_path / "home"),
    ):
        subprocess.run(
            ["sh", "-eu", "-c", shell_lines(page, heading)],
            cwd=tmp_path,
            check=True,
            timeout=120,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "AIRFLOW_HOME": str(home)},
        )
    names = sorted(path.stem for path in (ROOT / "dags").glob("*.py"))
    code = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag, readme = (DagBag(dag_folder=folder) for folder in sys.argv[1:])
import backstop
from airflow.plugins_manager import get_fastapi_plugins
from backstop.airflow.spark_operator import JOBS
print("FACTS" + json.dumps({
    "errors": bag.import_errors | readme.import_errors, "readme": sorted(readme.dags),
    "dags": {dag.dag_id: sorted(dag.task_ids) for dag in bag.dags.values()},
    "where": backstop.__file__, "path": sys.path, "jobs": sorted(path.name for path in JOBS.glob("*.py")),
    "pages": [app["url_prefix"] for app in get_fastapi_plugins()[0]],
    "loaded": [name for name in ("pyspark", "great_expectations") if name in sys.modules],
}))
"""
    facts = run(
        tmp_path / "env",
        code,
        str(tmp_path / "home" / "dags"),
        str(tmp_path / "readme" / "dags"),
        AIRFLOW_HOME=str(tmp_path / "home"),
        AIRFLOW__CORE__LOAD_EXAMPLES="False",
    )
    assert facts["errors"] == {}
    assert sorted(facts["dags"]) == names
    assert facts["readme"] == ["reconcile"]
    assert facts["where"].startswith(str(site))
    assert not [
        entry
        for entry in facts["path"]
        if entry.rstrip("/").endswith(("/include", "/plugins")) and entry.startswith(str(ROOT))
    ]
    assert "reconcile.py" in facts["jobs"]
    assert facts["pages"] == ["/backstop/api/v1", "/backstop", "/backstop-metrics"]
    assert facts["loaded"] == []


def test_the_command_line_and_the_plugin_are_entry_points(wheel: Path, tmp_path: Path) -> None:
    full_environment(tmp_path / "env", wheel)
    code = """
import json
from importlib.metadata import entry_points, version
(plugin,) = [e for e in entry_points(group="airflow.plugins") if e.name == "backstop"]
(command,) = [e for e in entry_points(group="console_scripts") if e.name == "backstop"]
print("FACTS" + json.dumps([version("backstop-mq"), plugin.load().name, command.value]))
"""
    version, plugin, command = run(tmp_path / "env", code, AIRFLOW_HOME=str(tmp_path / "home"))
    assert version == "0.2.0"
    assert plugin == "backstop"
    assert command == "backstop.cli:main"
