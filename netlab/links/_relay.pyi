"""The compiled core as cffi presents it: C types, which Python cannot describe. Made by relay_build.py."""

from typing import Any

ffi: Any
lib: Any
