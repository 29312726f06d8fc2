"""Compile Java sources of the tests, as the demo does it."""

from backstop_lab.servers.compile_java import class_path, compiled
from backstop_lab.servers.java import java

__all__ = ["class_path", "compiled", "java"]
