"""JUnit XML, as a pytest inside the user-mode kernel wrote it -> one Result per test. Pure."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import Literal

NODE_ID = "nodeid"  # a property that the inside adds to every test; JUnit's own names cannot be turned back surely


@dataclass(frozen=True)
class Result:
    """What became of one test inside. `text` is the traceback, or the reason of a skip."""

    state: Literal["passed", "failed", "skipped"]
    text: str
    output: str
    seconds: float


def parse(xml: str) -> dict[str, Result]:
    """Results by pytest's node id. Raises ElementTree.ParseError on a file that was cut short."""
    found: dict[str, Result] = {}
    for case in ET.fromstring(xml).iter("testcase"):
        ids = [one.get("value") for one in case.iter("property") if one.get("name") == NODE_ID]
        if ids and ids[0]:
            found[ids[0]] = _worse(found.get(ids[0]), _result(case))
    return found


def _result(case: ET.Element) -> Result:
    output = "\n".join((part.text or "").strip() for part in case if part.tag in ("system-out", "system-err"))
    seconds = float(case.get("time", "0"))
    for tag in ("failure", "error"):
        fault = case.find(tag)
        if fault is not None:
            return Result("failed", f"{fault.get('message', '')}\n{fault.text or ''}".strip(), output, seconds)
    skip = case.find("skipped")
    if skip is not None:
        return Result("skipped", skip.get("message", ""), output, seconds)
    return Result("passed", "", output, seconds)


def _worse(first: Result | None, second: Result) -> Result:
    """A test that fails, and whose teardown fails too, has two entries."""
    return first if first is not None and first.state == "failed" else second
