"""Packs the libraries that Spark's executors need into one archive, for clusters whose machines have none of them.

`python -m backstop.spark.pack_environment executors.tar.gz` copies from the running environment, which is the driver's: both
sides have the same versions. Spark itself stays out (each worker brings its own), and so does our code, which every job
sends along: an archive lasts until a library changes. The archive is a virtual environment without its interpreter.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import cache_from_source
from pathlib import Path, PurePosixPath

from backstop.model.errors import BackstopError, ConfigurationError

NEEDED = (
    "duckdb",
    "google-re2",
    "numpy",
    "pandas",
    "psycopg2-binary",
    "pyarrow",
    "pydantic",
    "pyyaml",
    "redis",
)
"""What the jobs import in an executor; their own requirements come with them."""
WHERE_INSTALLED = ("pymongo", "pymysql")
"""Drivers of other stores, which executors read as well."""
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")
_LEFT_OUT = {"__pycache__", "tests", "include"}
"""Folders that no job reads: half of the size of the numeric libraries."""


def pack(archive: Path, python: str | None = None) -> int:
    """Writes `archive` (.tar.gz) and returns how many files went in.

    `python`: the interpreter's absolute path on the workers, of the same minor version; default: where this one lies.
    Raises ConfigurationError when a library is missing here. A crash leaves no half archive.
    """
    interpreter = python or os.path.realpath(sys.executable)
    site = PurePosixPath(
        "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages"
    )
    partial = archive.with_name(f".{archive.name}.{os.getpid()}")
    count = 0
    try:
        # Quick rather than small: it is read by machines beside this one, once each.
        with tarfile.open(partial, "w:gz", compresslevel=1) as out:
            _add_text(
                out,
                "pyvenv.cfg",
                f"home = {os.path.dirname(interpreter)}\ninclude-system-site-packages = false\n",
            )
            link = tarfile.TarInfo("bin/python")
            link.type, link.linkname = tarfile.SYMTYPE, interpreter
            out.addfile(link)
            for found in _closure(NEEDED, WHERE_INSTALLED):
                for source, inside in _files(found):
                    out.add(source, arcname=str(site / inside), recursive=False)
                    count += 1
        partial.replace(archive)
    finally:
        partial.unlink(missing_ok=True)
    return count


def _closure(names: tuple[str, ...], optional_names: tuple[str, ...]) -> Iterator[Distribution]:
    """These distributions and all that they require, each once; of `optional_names` those that are installed."""
    waiting = [(name, False) for name in names] + [(name, True) for name in optional_names]
    seen: set[str] = set()
    while waiting:
        name, optional = waiting.pop()
        known_as = re.sub(r"[-_.]+", "-", name).lower()
        if known_as in seen:
            continue
        seen.add(known_as)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            if optional:  # not used here, or a requirement for another platform or Python
                continue
            raise ConfigurationError(
                f"The library {name} is not installed here, and executors need it.",
                unaffected="No archive was written.",
                next_step='Install "backstop-mq[platform,spark]" into this environment, then pack again.',
            ) from None
        yield found
        for line in found.requires or ():
            requirement, _, marker = line.partition(";")
            named = _NAME.match(requirement.strip())
            if named and "extra" not in marker:
                waiting.append((named[0], bool(marker)))


def _files(found: Distribution) -> Iterator[tuple[Path, PurePosixPath]]:
    """(where it lies, its place in site-packages) of each file of a distribution."""
    for file in found.files or ():
        inside = PurePosixPath(str(file))
        if (
            inside.parts[0] == ".."
            or _LEFT_OUT & set(inside.parts[1:-1])
            or inside.suffix == ".pyc"
        ):
            continue  # scripts of `bin`, and what no job reads
        source = Path(str(found.locate_file(file)))
        if source.is_file():
            yield source, inside
        if inside.suffix == ".py" and (compiled := Path(cache_from_source(str(source)))).is_file():
            # Else each executor compiles all that it imports, which takes it longer than most jobs.
            yield compiled, inside.parent / "__pycache__" / compiled.name


def _add_text(out: tarfile.TarFile, name: str, text: str) -> None:
    content = text.encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    out.addfile(entry, io.BytesIO(content))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m backstop.spark.pack_environment", description=__doc__
    )
    parser.add_argument("archive", type=Path, help="the file to write, such as executors.tar.gz")
    parser.add_argument(
        "--python", help="the interpreter's path on the workers; default: this one's"
    )
    asked = parser.parse_args(arguments)
    try:
        count = pack(asked.archive, asked.python)
    except BackstopError as refused:
        print(refused, file=sys.stderr)
        return refused.exit_code
    print(f"{asked.archive}: {count} files, {asked.archive.stat().st_size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
