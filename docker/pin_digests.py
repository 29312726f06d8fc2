"""Writes the digest of each base image behind its tag, in docker-compose.yaml and docker/Dockerfile.

Wants Docker with buildx, and a way to the registry. Run it again to take what the tags have become; look at the difference.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = (ROOT / "docker-compose.yaml", ROOT / "docker" / "Dockerfile")
DIGEST = "sha256:[0-9a-f]{64}"
# Our own image is built here and has no registry.
IMAGE = re.compile(rf"(?m)^(\s*image: |FROM )(?!backstop:)([^\s@]+:[^\s@]+)(?:@{DIGEST})?(?=\s|$)")


def digest(image: str) -> str:
    """Of the index of all platforms, so that the pin holds on each."""
    command = [
        "docker",
        "buildx",
        "imagetools",
        "inspect",
        image,
        "--format",
        "{{.Manifest.Digest}}",
    ]
    answer = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, timeout=120
    ).stdout.strip()
    if not re.fullmatch(DIGEST, answer):
        raise ValueError(f"Docker named no digest for {image}: {answer!r}")
    return answer


def main(files: list[Path]) -> int:
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    try:
        found = {
            name: digest(name)
            for name in sorted({hit[2] for text in texts.values() for hit in IMAGE.finditer(text)})
        }
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"Nothing was written, because a digest could not be read: {error}", file=sys.stderr)
        return 1
    for file, text in texts.items():
        file.write_text(
            IMAGE.sub(lambda hit: f"{hit[1]}{hit[2]}@{found[hit[2]]}", text), encoding="utf-8"
        )
    print("\n".join(f"{name}@{one}" for name, one in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main([Path(name) for name in sys.argv[1:]] or list(FILES)))
