"""Renovate's own validator looks at the form of renovate.json; here is whether its expressions find the pins."""

from __future__ import annotations

import json
import re
from pathlib import Path

from spark_images.pins import GitPin, ImagePin, SdistPin, WheelsPin
from spark_images.pins_file import read_pins

ROOT = Path(__file__).parents[2]


def found(description: str) -> set[tuple[str, str]]:
    """(depName, currentValue) of everything that the manager finds in pins.yaml."""
    managers = json.loads((ROOT / "renovate.json").read_text())["customManagers"]
    (manager,) = [one for one in managers if one["description"].startswith(description)]
    text = (ROOT / "pins.yaml").read_text()
    expressions = [expression.replace("(?<", "(?P<") for expression in manager["matchStrings"]]
    return {(match["depName"], match["currentValue"]) for one in expressions for match in re.finditer(one, text)}


def test_every_kind_of_pin_that_has_an_upstream_is_found() -> None:
    pins = read_pins(ROOT / "pins.yaml").pins
    assert found("Pins of kind sdist") == {(pin.project, pin.version) for pin in pins if isinstance(pin, SdistPin)}
    images = {tuple(pin.ref.rsplit(":", 1)) for pin in pins if isinstance(pin, ImagePin)}
    assert found("Pins of kind image") == images
    hosted = {
        (pin.url.removeprefix("https://github.com/"), pin.version)
        for pin in pins
        if isinstance(pin, GitPin) and pin.url.startswith("https://github.com/")
    }
    assert found("Pins of kind git") == hosted
    packages = {tuple(package.split("==")) for pin in pins if isinstance(pin, WheelsPin) for package in pin.packages}
    assert packages <= found("Packages of pins of kind wheels")
