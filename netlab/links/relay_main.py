"""The relay process: loads the compiled core and hands it the two descriptors it was given.

Run by path, isolated and without site-packages, so that it is up within milliseconds; netlab.links.relay says
how. Arguments: the compiled module, the folder of cffi's runtime, the shared memory's descriptor, the control
descriptor.
"""

import os
import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from typing import Any


def main(argv: list[str]) -> int:
    """Run the relay until the control descriptor is closed at its other end; the exit status says 0 or errno."""
    module_path, cffi_folder, shared_fd, control_fd = argv
    sys.path.append(cffi_folder)
    name = "netlab.links._relay"
    loader = ExtensionFileLoader(name, module_path)
    relay: Any = loader.create_module(ModuleSpec(name, loader, origin=module_path))
    error: int = relay.lib.nl_relay_main(int(shared_fd), int(control_fd))
    if error:
        sys.stderr.write(os.strerror(error))
    return error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
