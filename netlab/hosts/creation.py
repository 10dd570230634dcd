"""From what is wanted to the words of the Engine API: one container's configuration. Pure.

Every container has no network but its loopback, the engine's own confinement (capabilities, seccomp, AppArmor) with no
way to gain a privilege, netlab-init as pid 1, and is removed by the engine when that ends.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docker.types import DeviceRequest, LogConfig, Mount

from netlab.hosts.containers import INIT
from netlab.hosts.engine import Engine
from netlab.hosts.machine import EMPTY, Bind, Machine, user_ids
from netlab.hosts.order import Order, Wanted

INIT_TARGET = "/.netlab-init"
WAIT_S = 60
"""How long a container waits for the lab to come and take it; one that nobody takes ends by itself."""

SHM_BYTES = 1 << 30
"""The engine's default of 64 MiB breaks data loaders; a bare process has half of the machine's memory."""


def host_config(order: Order, wanted: Wanted, machine: Machine | None, engine: Engine) -> dict[str, Any]:
    """Arguments of the SDK's ``create_host_config``."""
    settings = wanted.settings
    config: dict[str, Any] = {
        "network_mode": "none",
        "auto_remove": True,
        "extra_hosts": dict(order.names),
        "mounts": [mount(bind, engine.root) for bind in _binds(order, wanted, machine)],
        "security_opt": ["no-new-privileges:true"],
        "log_config": LogConfig(type="none"),
        "shm_size": settings.shm_size.bytes if settings.shm_size else SHM_BYTES,
        "init": False,
    }
    if settings.cpus is not None:
        config["nano_cpus"] = round(settings.cpus * 1e9)
    if settings.cpuset is not None:
        config["cpuset_cpus"] = settings.cpuset
    if settings.memory is not None:
        # no swap on top: a limit that spills over would turn a failure into slowness
        config["mem_limit"] = config["memswap_limit"] = settings.memory.bytes
    if settings.gpus and machine is None:
        config["device_requests"] = [device_request(settings.gpus)]
    if machine is not None:
        config |= _over_machine(machine, engine)
        config["devices"] = [f"{path}:{path}:rwm" for path in machine.gpu_devices(settings.gpus)]
    return config


def container_config(order: Order, wanted: Wanted, image: str) -> dict[str, Any]:
    """Arguments of the SDK's ``create_container`` beside the host configuration."""
    user = wanted.settings.user
    return {
        "image": image,
        "name": order.name(wanted.worker),
        "hostname": wanted.worker,
        "entrypoint": [INIT_TARGET],
        "command": ["listen", str(WAIT_S)],
        "labels": order.labels(wanted.worker),
        "user": user_ids(user) if user and wanted.settings.on_machine else user,
        "working_dir": wanted.settings.workdir,
        "environment": dict(wanted.settings.environment) or None,
        "healthcheck": {"test": ["NONE"]},
    }


def device_request(gpus: tuple[str, ...]) -> DeviceRequest:
    """GPUs by the engine's own means (the NVIDIA container toolkit)."""
    if gpus[0] == "all" or gpus[0].startswith("#"):
        count = -1 if gpus[0] == "all" else int(gpus[0].removeprefix("#"))
        return DeviceRequest(count=count, capabilities=[["gpu"]])
    return DeviceRequest(device_ids=list(gpus), capabilities=[["gpu"]])


def mount(bind: Bind, engine_root: str) -> Mount:
    """A bind mount; without what is mounted below it, since that would stay writable under a read-only one.

    The engine itself chooses how a mount that contains its own files learns of what it mounts there later.
    """
    made = Mount(bind.target, bind.source, type="bind", read_only=bind.read_only)
    options = {} if Path(engine_root).is_relative_to(bind.source) else {"Propagation": "rprivate"}
    made["BindOptions"] = options if bind.whole else {**options, "NonRecursive": True}
    return made


def _binds(order: Order, wanted: Wanted, machine: Machine | None) -> list[Bind]:
    """Every mount once; what is wanted for this container counts more than what the machine shows."""
    binds = [*(machine.binds if machine is not None else ()), Bind(str(INIT), INIT_TARGET)]
    for volume in wanted.settings.volumes:
        source = str(Path(order.folder, volume.source).absolute())
        binds.append(Bind(source, volume.target, read_only=volume.read_only, whole=True))
    binds += [Bind(path, path, read_only=False, whole=True) for path in order.writable]
    return list({bind.target: bind for bind in binds}.values())


def _over_machine(machine: Machine, engine: Engine) -> dict[str, Any]:
    config: dict[str, Any] = {
        "read_only": True,
        "tmpfs": {**EMPTY, **dict.fromkeys(machine.covered, "mode=700,size=4k")},
    }
    if engine.labels_files:
        config["security_opt"] = ["no-new-privileges:true", "label=disable"]
    if engine.remaps_users:
        config["userns_mode"] = "host"
    return config
