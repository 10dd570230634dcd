"""Topology -> a compose file: the same network on any engine that can run it. Pure; ``netlab compose`` prints it.

One privileged ``netlab`` service shares the host's pid namespace; the workers are services without a network whose
netlab-inits come to it over a socket in a volume (``netlab.hosts.attached``). Names and addresses are those of the
plan, so they are fixed here, in ``extra_hosts``. The file is written for Debian's compose 1.29 and for every compose 2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from netlab.errors import PlanError
from netlab.hosts.containers import CONTROL
from netlab.hosts.creation import SHM_BYTES
from netlab.hosts.settings import HostSettings
from netlab.plan import Plan
from netlab.topology import Worker

IMAGE = "${NETLAB_IMAGE:-netlab-cpdp}"
"""Ours unless the environment of docker compose names another."""

SOCKET_FOLDER = "/run/netlab-control"
HOME = "/lab"
PROFILE = f"{HOME}/profile.yaml"
PRIVILEGE: dict[str, Any] = {
    "pid": "host",  # to see the workers' processes, and by them their networks
    "cap_add": ["NET_ADMIN", "SYS_ADMIN", "SYS_NICE", "SYS_PTRACE"],
    "devices": ["/dev/net/tun"],
    "security_opt": ["apparmor:unconfined", "label:disable"],
}
"""What the netlab service may do beyond other containers: enter the workers' networks (SYS_PTRACE to find them,
SYS_ADMIN to enter them and to make its own namespaces), shape them (NET_ADMIN, TUN), and keep time (SYS_NICE, for
real-time priority). ``privileged: true`` would be more, and does not start where the engine itself lacks a capability.
"""

_INIT_IN_VOLUME = f"{SOCKET_FOLDER}/netlab-init"


@dataclass(frozen=True)
class Render:
    """What a file is rendered from: ``profile_file`` is the profile's path as seen from the compose file's folder, or
    None for a shipped profile, which our image has; ``root`` is the way from that folder to this project, to build
    the image, or None where there is no checkout.
    """

    plan: Plan
    command: tuple[str, ...]
    said: str  # the command that renders this file
    profile_file: str | None = None
    root: str | None = None


def render(asked: Render) -> str:
    """The compose file. Raises PlanError for what compose cannot be told."""
    document: dict[str, Any] = {"services": {"netlab": _netlab(asked)}}
    for worker in asked.plan.topology.workers:
        document["services"][worker.name] = _worker(asked, worker)
    document["volumes"] = {"control": {}}
    if "netlab" in {worker.name for worker in asked.plan.topology.workers}:
        raise PlanError("a worker is named netlab, as the service that makes the network must be")
    text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=110, default_flow_style=False)
    return _header(asked) + text


def _header(asked: Render) -> str:
    profile = asked.plan.topology.profile
    lines = [
        f"{profile.name}, its workers in containers. Rendered by",
        f"    {asked.said}",
        "and to be rendered again rather than edited. To run it, and to remove everything afterwards:",
        "    docker compose -f THIS_FILE up --exit-code-from netlab",
        "    docker compose -f THIS_FILE down --volumes",
        "Results go to the folder runs beside this file. On macOS and Windows, Docker Desktop runs it as it is.",
    ]
    return "".join(f"# {line}\n" for line in lines)


def _netlab(asked: Render) -> dict[str, Any]:
    service: dict[str, Any] = {"image": IMAGE}
    if asked.root is not None:
        service["build"] = {"context": asked.root, "dockerfile": "docker/Dockerfile"}
    volumes = [f"control:{SOCKET_FOLDER}", f"./runs:{HOME}/runs"]
    if asked.profile_file is not None:
        volumes.append(f"{_relative(asked.profile_file)}:{PROFILE}:ro")
    return service | {
        "command": [_escape(word) for word in asked.command],
        "user": "0",
        **PRIVILEGE,
        "network_mode": "none",
        "working_dir": HOME,
        "environment": {CONTROL: f"{SOCKET_FOLDER}/lab.sock"},
        "volumes": volumes,
    }


def _worker(asked: Render, worker: Worker) -> dict[str, Any]:
    settings = asked.plan.settings(worker)
    own = not settings.on_machine
    service: dict[str, Any] = {
        "image": settings.image_name if own else IMAGE,
        "entrypoint": [_INIT_IN_VOLUME if own else "netlab-init"],
        "command": ["connect", f"{SOCKET_FOLDER}/lab.sock", worker.name],
        "hostname": worker.name,
        "user": settings.user or "0",  # root, who also writes below runs, in a folder that the netlab service made
        "working_dir": settings.workdir or HOME,
        "network_mode": "none",
        "extra_hosts": [f"{each.name}:{each.address}" for each in asked.plan.topology.workers],
        "security_opt": ["no-new-privileges:true"],
        "shm_size": settings.shm_size.bytes if settings.shm_size else SHM_BYTES,
        "volumes": [f"control:{SOCKET_FOLDER}:ro", f"./runs:{HOME}/runs"],
        "depends_on": ["netlab"],
        "stop_grace_period": "2s",
    }
    service["volumes"] += [
        f"{_relative(volume.source)}:{volume.target}{':ro' if volume.read_only else ''}" for volume in settings.volumes
    ]
    return service | _limits(settings)


def _limits(settings: HostSettings) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if settings.cpus is not None:
        found["cpus"] = settings.cpus
    if settings.cpuset is not None:
        found["cpuset"] = settings.cpuset
    if settings.memory is not None:
        found["mem_limit"] = found["memswap_limit"] = settings.memory.bytes
    if settings.environment:
        found["environment"] = {name: _escape(value) for name, value in settings.environment}
    if settings.gpus:
        found["deploy"] = {"resources": {"reservations": {"devices": [_gpus(settings.gpus)]}}}
    return found


def _gpus(gpus: Sequence[str]) -> dict[str, Any]:
    device: dict[str, Any] = {"driver": "nvidia", "capabilities": ["gpu"]}
    if gpus[0] == "all":
        return device | {"count": "all"}
    if gpus[0].startswith("#"):
        return device | {"count": int(gpus[0][1:])}
    return device | {"device_ids": list(gpus)}


def _relative(path: str) -> str:
    """Compose takes a source for the name of a volume unless it looks like a path."""
    return path if path.startswith(("/", "./", "../")) or path == "." else f"./{path}"


def _escape(text: str) -> str:
    """A dollar sign begins a variable in a compose file."""
    return text.replace("$", "$$")


class _Dumper(yaml.SafeDumper):
    """Lists of plain words on one line, texts that YAML 1.1 would take for something else in quotes."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write everything out."""
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent the entries of a list below their key."""
        super().increase_indent(flow, False)


def _list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
    words = all(isinstance(item, str) for item in items)
    short = words and sum(len(item) + 4 for item in items) < 90 and not any(":" in item for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=short)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    odd = re.fullmatch(r"[A-Za-z./$_][A-Za-z0-9_.,/=@${}:+-]*(?<!:)", text) is None
    plain_word = text.lower() in ("yes", "no", "on", "off", "true", "false", "null", "y", "n")
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if odd or plain_word else None)


_Dumper.add_representer(list, _list)
_Dumper.add_representer(str, _text)
