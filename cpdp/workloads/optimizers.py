"""The local optimizer of a real workload: an experiment's mapping -> torch.optim. Checking needs no torch.

A training loop of one's own may use any optimizer with `cpdp.DataParallel`; these are the ones that experiment files
can name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cpdp.errors import WorkloadError

if TYPE_CHECKING:
    import torch

_ADAM = {"lr": 1e-3, "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
OPTIMIZERS: dict[str, dict[str, float | bool]] = {
    "sgd": {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "nesterov": False},
    "adam": _ADAM,
    "adamw": {**_ADAM, "weight_decay": 0.01},
}
"""Every optimizer with its options; the defaults are torch's, and 0.1 for SGD's learning rate."""


def complete(options: Mapping[str, Any]) -> dict[str, Any]:
    """An optimizer mapping with every option filled in. Raises WorkloadError for what does not exist."""
    name = str(options.get("name", "sgd"))
    if name not in OPTIMIZERS:
        raise WorkloadError(f"optimizer: {name!r} does not exist here; valid: {', '.join(OPTIMIZERS)}")
    for key in options:
        if key != "name" and key not in OPTIMIZERS[name]:
            raise WorkloadError(f"optimizer {name}: no option {key!r}; valid: {', '.join(OPTIMIZERS[name])}")
    chosen = {**OPTIMIZERS[name], **{key: value for key, value in options.items() if key != "name"}}
    for key in ("beta1", "beta2"):
        if key in chosen and not 0 <= chosen[key] < 1:
            raise WorkloadError(f"optimizer {name}: {key}: {chosen[key]} is not allowed; a number from 0 to below 1")
    if chosen.get("nesterov") and not chosen["momentum"] > 0:
        raise WorkloadError("optimizer sgd: nesterov: true needs a momentum above 0")
    return {"name": name, **chosen}


def make(parameters: Iterable[torch.nn.Parameter], options: Mapping[str, Any]) -> torch.optim.Optimizer:
    """The optimizer for these parameters. Raises WorkloadError for what does not exist or is out of range."""
    import torch

    chosen = complete(options)
    name = chosen.pop("name")
    try:
        if name == "sgd":
            return torch.optim.SGD(parameters, **chosen)
        betas = (chosen.pop("beta1"), chosen.pop("beta2"))
        kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
        return kind(parameters, betas=betas, **chosen)
    except (TypeError, ValueError) as error:
        raise WorkloadError(f"optimizer: {error}") from error
