"""Workloads by name: the mapping of a cell -> a `Workload` on one worker.

Flow: experiment -> cell.json -> `build` -> worker. A workload says which kinds of computation it has; `compute` picks
one: `real` is forward and backward on real data, `replayed` is a timed wait per layer with gradients of the real size.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cpdp.errors import WorkloadError

if TYPE_CHECKING:
    from cpdp.workloads.base import Place, Workload

_IMAGES: dict[str, Any] = {"compute": "real", "batch": 64, "skew": 0.0, "augment": False}
DEFAULTS: dict[str, dict[str, Any]] = {
    "resnet50-cifar100": {"compute": "replayed", "timeline": "resnet50-cifar100", "batch": 128},
    "digits": {"compute": "real", "batch": 64, "width": 32},
    "mnist5k": {**_IMAGES, "model": "cnn"},
    "synthetic": {**_IMAGES, "model": "resnet20", "images": 2048, "side": 32, "classes": 10},
    "cifar10": {**_IMAGES, "model": "resnet20", "root": "data", "batch": 128},
    "cifar100": {**_IMAGES, "model": "resnet18", "root": "data", "batch": 128},
    "tinyimagenet": {**_IMAGES, "model": "resnet18", "root": "data", "batch": 128},
}
"""Every workload with its options. A replayed workload's batch is the timeline's and only checked against it."""


def names() -> tuple[str, ...]:
    """The names of all workloads."""
    return tuple(DEFAULTS)


def check(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a workload mapping, defaults filled in. Raises WorkloadError for what does not exist."""
    name = mapping.get("name")
    if name not in DEFAULTS:
        raise WorkloadError(f"workload: {name!r} does not exist; {_valid(str(name), names())}")
    defaults = DEFAULTS[name]
    for key in mapping:
        if key != "name" and key not in defaults:
            raise WorkloadError(f"workload {name}: no option {key!r}; {_valid(key, tuple(defaults))}")
    options = {**defaults, **{key: value for key, value in mapping.items() if key != "name"}}
    if options["compute"] != defaults["compute"]:
        raise WorkloadError(
            f"workload {name}: compute: {options['compute']!r} is not supported by this version; "
            f"supported: {defaults['compute']}"
        )
    if "augment" in options:
        options["augment"] = _switch(name, options["augment"])
    if "skew" in options:
        options["skew"] = _share(name, options["skew"])
    for key in ("batch", "width", "images", "side", "classes"):
        if key in options:
            options[key] = _whole(name, key, options[key])
    return options


def _whole(name: str, key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 1:
        raise WorkloadError(f"workload {name}: {key}: {value!r} is not allowed; a whole number from 1")
    return int(value)


def _switch(name: str, value: Any) -> bool:
    if value in (True, False, "true", "false"):
        return value in (True, "true")
    raise WorkloadError(f"workload {name}: augment: {value!r} is not allowed; true or false")


def _share(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise WorkloadError(f"workload {name}: skew: {value!r} is not allowed; a share from 0 to 1")
    return float(value)


def _valid(wrong: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(wrong, known, n=1)
    return f"valid: {', '.join(known)}" + (f" (did you mean {near[0]!r}?)" if near else "")


def build(mapping: Mapping[str, Any], place: Place, dilation: float = 1.0) -> Workload:
    """Make the workload of a cell on one worker; replayed computation takes `dilation` times longer. Raises
    WorkloadError.
    """
    options = check(mapping)
    if options["compute"] == "replayed":
        from cpdp.workloads.replayed import Replayed

        workload = Replayed(options["timeline"], dilation)
        if workload.timeline.batch != options["batch"]:
            raise WorkloadError(
                f"workload {mapping['name']}: batch: {options['batch']} is not what was timed; "
                f"timeline {workload.timeline.name} has {workload.timeline.batch}"
            )
        return workload
    if mapping["name"] != "digits":
        from cpdp.workloads.images import ImageTraining

        return ImageTraining(place, str(mapping["name"]), options)
    from cpdp.workloads.digits import Digits

    return Digits(place, batch=options["batch"], width=options["width"])
