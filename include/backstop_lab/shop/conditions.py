"""The world around the shop's groups, as whoever runs the demo sets it: files that every worker looks at."""

from __future__ import annotations

from pathlib import Path

from backstop_lab.shop.demand import ACCOUNT_IS_OPEN, CARRIER_IS_DOWN, RULE_IS_MENDED


class Conditions:
    """`folder` is made; nothing is wrong at first, except the rule of billing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def carrier_is_down(self) -> None:
        (self.folder / CARRIER_IS_DOWN).touch()

    def carrier_is_back(self) -> None:
        (self.folder / CARRIER_IS_DOWN).unlink()

    def mend_the_rule(self) -> None:
        (self.folder / RULE_IS_MENDED).touch()

    def open_the_account(self) -> None:
        (self.folder / ACCOUNT_IS_OPEN).touch()
