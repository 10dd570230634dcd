"""netlab: sites and WAN links on one machine, for any program.

    from netlab import Lab
    with Lab.start("grid5000-nancy-sophia") as lab:
        lab.run(["python", "train.py"])

Names are loaded on first use, so that ``import netlab`` costs nothing in the many small processes of a lab.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from netlab.dilation import dilate as dilate
    from netlab.document import Node as Node
    from netlab.document import Scalar as Scalar
    from netlab.document import parse_document as parse_document
    from netlab.errors import DocumentError as DocumentError
    from netlab.errors import InvalidEmulation as InvalidEmulation
    from netlab.errors import NetlabError as NetlabError
    from netlab.errors import UserError as UserError
    from netlab.fields import Fields as Fields
    from netlab.fields import Problems as Problems
    from netlab.fields import read_fields as read_fields
    from netlab.fields import read_text as read_text
    from netlab.health import Health as Health
    from netlab.health import Mark as Mark
    from netlab.job import JobResult as JobResult
    from netlab.job import WorkerExit as WorkerExit
    from netlab.lab import Lab as Lab
    from netlab.packets import read_packets as read_packets
    from netlab.profile import Profile as Profile
    from netlab.profile import load_profile as load_profile
    from netlab.profile import parse_profile as parse_profile
    from netlab.shipped import find_document as find_document
    from netlab.topology import Worker as Worker
    from netlab.units import Delay as Delay
    from netlab.units import Duration as Duration
    from netlab.verify import Verification as Verification

_HOME = {
    "Delay": "units",
    "Duration": "units",
    "DocumentError": "errors",
    "dilate": "dilation",
    "Fields": "fields",
    "Node": "document",
    "Problems": "fields",
    "Scalar": "document",
    "find_document": "shipped",
    "parse_document": "document",
    "read_fields": "fields",
    "read_text": "fields",
    "InvalidEmulation": "errors",
    "NetlabError": "errors",
    "UserError": "errors",
    "Health": "health",
    "Mark": "health",
    "JobResult": "job",
    "WorkerExit": "job",
    "Lab": "lab",
    "read_packets": "packets",
    "Profile": "profile",
    "load_profile": "profile",
    "parse_profile": "profile",
    "Worker": "topology",
    "Verification": "verify",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'netlab' has no attribute {name!r}")
    return getattr(importlib.import_module(f"netlab.{_HOME[name]}"), name)
