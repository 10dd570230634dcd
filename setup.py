"""Only what pyproject.toml cannot say: the relay core is a C extension built through cffi."""

from setuptools import setup

setup(cffi_modules=["netlab/links/relay_build.py:ffi"])
