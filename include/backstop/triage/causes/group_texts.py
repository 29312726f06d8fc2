"""Groups texts as classify does, without a database: what a set of texts would be as causes."""

from __future__ import annotations

from collections.abc import Sequence

from backstop.triage.causes.find_patterns import find_patterns
from backstop.triage.causes.fingerprint import fingerprint
from backstop.triage.causes.rules import Rules


def group_texts(texts: Sequence[str], rules: Rules | None = None) -> list[str]:
    """For each text its cause's template: texts of one group have the same one."""
    known = rules or Rules()
    templates = [fingerprint(text).template for text in texts]
    said: dict[str, str] = {}
    for text, template in zip(texts, templates, strict=True):
        if template not in said:
            said[template] = known.categorise("", text)[0]
    found = find_patterns(said)
    return [found.get(template, template) for template in templates]
