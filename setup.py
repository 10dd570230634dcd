"""Only what pyproject.toml cannot say: two things written in C.

The relay core is an extension through cffi. netlab-init, pid 1 of a worker's container, is a program of its own and
statically linked, so that it runs in any image; without a static C library all but ``--hosts docker`` still works.
"""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

INIT_SOURCES = ["netlab/hosts/core/init.c", "netlab/hosts/core/program.c"]
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wno-sign-conversion"]


class BuildNative(build_ext):
    """The extensions, and netlab-init beside netlab/hosts/*.py."""

    def run(self) -> None:
        """Build both; the second may fail."""
        super().run()
        folder = Path("." if self.inplace else self.build_lib, "netlab", "hosts")
        folder.mkdir(parents=True, exist_ok=True)
        try:
            flags = ["-std=gnu11", "-O2", *WARNINGS]
            objects = self.compiler.compile(INIT_SOURCES, output_dir=self.build_temp, extra_postargs=flags)
            self.compiler.link_executable(objects, str(folder / "netlab-init"), extra_postargs=["-static", "-s"])
        except (CompileError, LinkError) as error:
            print(f"netlab-init is not built, --hosts docker will not work: {error}", file=sys.stderr)


setup(cffi_modules=["netlab/links/relay_build.py:ffi"], cmdclass={"build_ext": BuildNative})
