"""Compile Java sources of the tests, as the demo does it."""

from backstop.local.compile_java import class_path, compiled
from backstop.local.java import java

__all__ = ["class_path", "compiled", "java"]
