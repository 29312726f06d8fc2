"""Unpacks compressed bodies: zlib always, LZ4 and Zstandard where pyarrow is installed."""

from __future__ import annotations

import importlib
import zlib

LZ4, ZSTD, ZLIB = 1, 2, 3
MAX_CONTENT = 64 * 1024 * 1024
"""No content is larger: the broker takes 4 MiB by default, and producers measure before they compress."""


class Unreadable(Exception):
    """Why a body cannot be unpacked, as the end of a sentence."""


def unpack(body: bytes, kind: int) -> bytes:
    """The content. `kind` as in a message's flags; 0 is zlib, from clients that knew nothing else. Raises Unreadable."""
    if kind in (0, ZLIB):
        return _unzip(body)
    if kind == LZ4:
        return _by_arrow(body, "LZ4", "lz4")
    if kind == ZSTD:
        return _by_arrow(body, "Zstandard", "zstd")
    raise Unreadable(f"it is compressed by the unknown way {kind}")


def _unzip(body: bytes) -> bytes:
    unzip = zlib.decompressobj()
    try:
        content = unzip.decompress(body, MAX_CONTENT)
    except zlib.error as error:
        raise Unreadable(f"it is marked as compressed and cannot be unpacked ({error})") from error
    if unzip.unconsumed_tail or not unzip.eof:
        raise Unreadable(f"its compressed content is cut off, or larger than {MAX_CONTENT} bytes")
    return content


def _by_arrow(body: bytes, called: str, codec: str) -> bytes:
    """Loaded only when such a message comes: consumers are light without it."""
    try:
        arrow = importlib.import_module("pyarrow")
    except ModuleNotFoundError:
        raise Unreadable(
            f"it is compressed by {called}, and pyarrow, which can unpack that, is not installed here"
        ) from None
    try:
        with arrow.input_stream(arrow.py_buffer(body), compression=codec) as stream:
            content = bytes(stream.read(MAX_CONTENT + 1))
    except (OSError, ValueError, arrow.ArrowException) as error:
        raise Unreadable(
            f"it is marked as compressed by {called} and cannot be unpacked ({error})"
        ) from error
    if (
        not content
    ):  # Arrow takes a first block that is cut off for the end; and nobody compresses nothing
        raise Unreadable(f"it is marked as compressed by {called} and holds nothing")
    if len(content) > MAX_CONTENT:
        raise Unreadable(f"its compressed content is larger than {MAX_CONTENT} bytes")
    return content
