"""Backstop: did each consumer group do its work, exactly once in effect, and if not, what happened and who acts next?"""

__version__ = "0.2.0"
