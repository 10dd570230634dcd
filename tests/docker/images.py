"""Images for tests, imported from this machine's files: no registry is asked for anything."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from pathlib import Path

import docker

TINY = "netlab-test/tiny"


def make_tiny(client: docker.APIClient) -> str:
    """A shell and a few tools with their libraries, and nothing else: no Python, no ip, no netlab."""
    programs = ["/bin/sh", "/bin/sleep", "/bin/cat", "/bin/ls", "/usr/bin/id", "/usr/bin/env", "/bin/touch"]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as tar:
        added: set[str] = set()
        for program in programs:
            for path in (program, *_libraries(program)):
                if path not in added:
                    added.add(path)
                    tar.add(path, arcname=path.lstrip("/"), recursive=False)
        for name, text in (("etc/passwd", "root:x:0:0::/:/bin/sh\nworker:x:1234:1234::/:/bin/sh\n"), ("tmp/here", "")):
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    client.import_image_from_data(buffer.getvalue(), repository=TINY, tag="latest", changes=["ENV OF_IMAGE=yes"])
    return TINY


def _libraries(program: str) -> list[str]:
    printed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return [path for path in re.findall(r"(/\S+) \(0x", printed) if Path(path).exists()]
