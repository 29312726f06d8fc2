"""Options of Java for the classes that its servers share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backstop_lab.servers import share_classes
from backstop_lab.servers.share_classes import archive, shared_classes


def test_a_server_uses_the_archive_made_for_its_jars_and_its_java_and_starts_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setitem(share_classes.HOMES, "rocketmq", tmp_path)
    jars = ["/a.jar", "/b.jar"]
    monkeypatch.setitem(share_classes.JARS, "rocketmq", lambda: jars)
    assert shared_classes("rocketmq") == []
    made = archive("rocketmq")
    made.touch()
    assert shared_classes("rocketmq")[0] == f"-XX:SharedArchiveFile={made}"
    jars.reverse()
    assert shared_classes("rocketmq") == [], "Java refuses an archive of another class path"
    jars.reverse()
    os.utime(program, (1, 1))
    assert shared_classes("rocketmq") == [], "Java is another one"
