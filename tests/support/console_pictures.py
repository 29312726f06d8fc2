"""Takes the pictures of the console that README and docs/how-to/console.md show: `make pictures`."""

from __future__ import annotations

import base64
import struct
import sys
import tempfile
import zlib
from pathlib import Path

from playwright.sync_api import Page

from console_browser import chromium, login, show
from console_seed import MESSAGE, PLAIN, seed
from live_people import Live, live_people, long_ago

LIVELY = (
    "INSERT INTO watch_shard (shard, taken_at) VALUES ('shop_a', now()), ('shop_b', now())"
    " ON CONFLICT (shard) DO UPDATE SET taken_at = excluded.taken_at",
    """INSERT INTO run (duty, token, policy_version, code_version, counts, phases, state, finished_at)
       SELECT d, gen_random_uuid(), 'p', 'c', jsonb_build_object(c, n), '{"read": 0.4, "write": 0.9}', 'done', clock_timestamp()
       FROM (VALUES ('resend', 'sent', 5), ('sweep', 'expired', 2), ('triage', 'replayed', 3)) v (d, c, n)""",
)
# The 256 most frequent colours, and for each other one the nearest of them.
PALETTE = """async png => {
  const image = await createImageBitmap(await (await fetch('data:image/png;base64,' + png)).blob());
  const canvas = new OffscreenCanvas(image.width, image.height).getContext('2d');
  canvas.drawImage(image, 0, 0);
  const data = canvas.getImageData(0, 0, image.width, image.height).data;
  const counts = new Map();
  const at = i => data[i] << 16 | data[i + 1] << 8 | data[i + 2];
  for (let i = 0; i < data.length; i += 4) counts.set(at(i), (counts.get(at(i)) ?? 0) + 1);
  const kept = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 256).map(([colour]) => colour);
  const far = (a, b) => [16, 8, 0].reduce((sum, bits) => sum + ((a >> bits & 255) - (b >> bits & 255)) ** 2, 0);
  const index = new Map(kept.map((colour, number) => [colour, number]));
  for (const colour of counts.keys())
    if (!index.has(colour))
      index.set(colour, kept.reduce((best, one, number) => far(one, colour) < far(kept[best], colour) ? number : best, 0));
  let pixels = '';
  for (let i = 0; i < data.length; i += 4) pixels += String.fromCharCode(index.get(at(i)));
  return { width: image.width, height: image.height, kept, pixels: btoa(pixels) };
}"""


def small(page: Page) -> bytes:
    """What the page shows, as a PNG of 256 colours: a third of the size."""
    made = page.evaluate(PALETTE, base64.b64encode(page.screenshot()).decode())
    width, height, pixels = made["width"], made["height"], base64.b64decode(made["pixels"])
    rows = b"".join(b"\0" + pixels[n * width : (n + 1) * width] for n in range(height))
    chunks = {
        b"IHDR": struct.pack(">2I5B", width, height, 8, 3, 0, 0, 0),
        b"PLTE": b"".join(colour.to_bytes(3, "big") for colour in made["kept"]),
        b"IDAT": zlib.compress(rows, 9),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks.items()
    )


def fill(live: Live) -> dict[str, str]:
    """Rows for every page; returns the page of each picture."""
    seed(live.rows, PLAIN)
    for statement in LIVELY:
        live.rows(statement)
    long_ago(live, MESSAGE)
    ((case,),) = live.rows("SELECT case_id FROM case_file WHERE subject = 'console'")
    ((proof, plan),) = live.rows(
        "SELECT (SELECT max(run_id) FROM proof), (SELECT max(run_id) FROM incident)"
    )
    return {
        "overview": "",
        "message": f"messages?topic=orders&id={MESSAGE}",
        "cases": f"cases/{case}",
        "dead-letters": "dead-letters",
        "flow": "flow",
        "resends": "resends",
        "replay": f"replays/{plan}",
        "run": f"runs/{proof}",
        "proof": f"proofs/{proof}",
        "settings": "settings",
    }


def main(folder: Path) -> None:
    """One picture for each page, as somebody sees it who may decide."""
    with (
        tempfile.TemporaryDirectory() as root,
        live_people(Path(root), dags=()) as live,
        chromium() as browser,
        login(browser, live, "olga") as page,
    ):
        for name, path in fill(live).items():
            show(page, live, path)
            picture = folder / f"console-{name}.png"
            picture.write_bytes(small(page))
            print(f"{picture}: {picture.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
