"""Unpacks compressed bodies: zlib always, LZ4 and Zstandard where a library for them is installed."""

from __future__ import annotations

import importlib
import io
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
        return _by_library(body, "LZ4", "lz4.frame", "lz4")
    if kind == ZSTD:
        return _by_library(body, "Zstandard", "zstandard", "zstd")
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


def _by_library(body: bytes, called: str, library: str, codec: str) -> bytes:
    """By the library made for it, else by Arrow, which has both."""
    try:
        try:
            content = bytes(_open(importlib.import_module(library), body).read(MAX_CONTENT + 1))
        except ModuleNotFoundError:
            arrow = importlib.import_module("pyarrow")
            with arrow.input_stream(arrow.py_buffer(body), compression=codec) as stream:
                content = bytes(stream.read(MAX_CONTENT + 1))
    except ModuleNotFoundError:
        needed = library.partition(".")[0]
        raise Unreadable(f"it is compressed by {called}, and neither {needed} nor pyarrow is installed here") from None
    except Exception as error:  # each library has errors of its own, and all mean the same here
        raise Unreadable(f"it is marked as compressed by {called} and cannot be unpacked ({error})") from error
    if len(content) > MAX_CONTENT:
        raise Unreadable(f"its compressed content is larger than {MAX_CONTENT} bytes")
    return content


def _open(library: object, body: bytes) -> io.RawIOBase:
    """The body as a stream: of a bomb no more is unpacked than is read."""
    source = io.BytesIO(body)
    if hasattr(library, "LZ4FrameFile"):
        return library.LZ4FrameFile(source)  # type: ignore[no-any-return]
    return library.ZstdDecompressor().stream_reader(source)  # type: ignore[attr-defined,no-any-return]
