"""The Docker Engine of this machine: reached, and found fit for a lab, or refused with what to do about it."""

from __future__ import annotations

import errno
import os
import platform
import socket
from dataclasses import dataclass
from typing import Any

import docker
from docker.errors import DockerException

from netlab.errors import UserError

DEFAULT_SOCKET = "unix:///var/run/docker.sock"
OLDEST_API = (1, 40)
"""Docker 19.03 (2019), the first with GPUs as device requests."""

_TIMEOUT_S = 120
_INSTEAD = "--hosts process needs no engine"
_COMPOSE = "there, run the netlab service beside the workers: netlab compose PROFILE (docs/how-to/docker-laptop.md)"


class EngineError(UserError):
    """There is no engine that a lab could use, or it refuses what was asked."""


@dataclass(frozen=True)
class Engine:
    """A connected engine: the SDK's client, and what the engine says about itself."""

    api: docker.APIClient
    url: str
    info: dict[str, Any]
    version: dict[str, Any]

    @property
    def remaps_users(self) -> bool:
        """Whether root in a container is another user outside."""
        return any(option.startswith("name=userns") for option in self.info.get("SecurityOptions") or ())

    @property
    def labels_files(self) -> bool:
        """Whether SELinux decides which files a container may see."""
        return any(option.startswith("name=selinux") for option in self.info.get("SecurityOptions") or ())

    @property
    def root(self) -> str:
        """Where the engine keeps images and containers."""
        return str(self.info.get("DockerRootDir") or "/var/lib/docker")

    def describe(self) -> str:
        """For people: version, place, cgroups."""
        groups = self.info.get("CgroupVersion") or "1"
        return f"Docker {self.version.get('Version')} at {self.url}, cgroup v{groups}"


def address() -> str:
    """Where the engine is: DOCKER_HOST, else the usual socket."""
    return os.environ.get("DOCKER_HOST") or DEFAULT_SOCKET


def connect() -> Engine:
    """The engine at ``address``, checked to be one that a lab can use. Raises EngineError."""
    url = address()
    if not url.startswith("unix://"):
        raise EngineError(
            f"the engine at {url} is reached over the network: a lab has to enter its containers' namespaces, so both"
            f" must be on one machine; {_COMPOSE}; {_INSTEAD}"
        )
    _check_socket(url.removeprefix("unix://"))
    try:
        api = docker.APIClient(base_url=url, version="auto", timeout=_TIMEOUT_S)
        engine = Engine(api, url, api.info(), api.version())
    except (DockerException, OSError) as error:
        raise EngineError(f"the engine at {url} does not answer as Docker does: {_short(error)}; {_INSTEAD}") from error
    problem = unfit(engine.info, engine.version, platform.release())
    if problem is not None:
        engine.api.close()
        raise EngineError(f"the engine at {url} {problem}")
    return engine


def _check_socket(path: str) -> None:
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(10)
            probe.connect(path)
    except OSError as error:
        raise EngineError(f"{_why(path, error)}; {_INSTEAD}") from error


def _why(path: str, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return (
            f"no Docker engine: {path} does not exist; install one (Debian: apt-get install docker.io) and start it"
            " (systemctl start docker), or name its socket in DOCKER_HOST"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"no permission on {path}: run with sudo, or become a member of the group that owns it (usually docker)"
    if error.errno == errno.ECONNREFUSED:
        return f"no engine answers at {path}: it is not running (systemctl start docker)"
    return f"the engine at {path} cannot be reached: {error.strerror or error}"


def unfit(info: dict[str, Any], version: dict[str, Any], kernel: str) -> str | None:
    """Why an engine that describes itself so cannot hold a lab's containers, or None. Pure."""
    names = [str(part.get("Name", "")) for part in version.get("Components") or ()]
    if any("podman" in name.lower() for name in names):
        return (
            "is Podman: it has no daemon that would remove a lab's containers after its owner was killed, and labs are"
            f" tested on Docker alone; {_INSTEAD} and works without root"
        )
    if any(option.startswith("name=rootless") for option in info.get("SecurityOptions") or ()):
        return (
            "is rootless: its containers belong to a user namespace of their own, into which no interface of a lab can"
            f" be moved; use a rootful engine (DOCKER_HOST={DEFAULT_SOCKET}), or --hosts process, which is rootless"
        )
    if info.get("OSType", "linux") != "linux":
        return f"runs {info.get('OSType')} containers: a lab needs Linux; {_COMPOSE}"
    if info.get("KernelVersion", kernel) != kernel:
        return (
            f"runs on another kernel ({info['KernelVersion']}, here is {kernel}), so in a virtual machine or elsewhere:"
            f" its containers' namespaces cannot be entered from here; {_COMPOSE}; {_INSTEAD}"
        )
    api = tuple(int(part) for part in str(version.get("ApiVersion", "0.0")).split("."))
    if api < OLDEST_API:
        return f"is too old: API {version.get('ApiVersion')}, {'.'.join(map(str, OLDEST_API))} is needed (Docker 19.03)"
    return None


def _short(error: BaseException) -> str:
    """The engine's own words, without the SDK's around them."""
    explanation = getattr(error, "explanation", None)
    text = explanation.decode(errors="replace") if isinstance(explanation, bytes) else str(explanation or error)
    return " ".join(text.split())


def reason(error: BaseException) -> str:
    """What the engine answered, in one line."""
    return _short(error)
