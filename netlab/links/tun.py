"""TUN and TAP devices with virtio-net headers: the doors through which the relay sees a link's packets.

The executor opens one at each end of a link, inside the site router's network namespace, and hands the
descriptors to netlab.links.relay. A device lives exactly as long as its descriptor: nothing to clean up.

With offload, the kernel hands over TCP (and, where known, UDP) in units of up to 64 KB with checksums left
open, and takes them back the same way; the virtio-net header says how a unit is to be cut.
"""

import errno
import fcntl
import os
import struct
from typing import Literal

from netlab.errors import NetlabError

Layer = Literal["ip", "ethernet"]

TX_QUEUE_LENGTH = 10_000
"""What the executor should set as txqueuelen of each device (packets, or units of up to 64 KB with offload).

The kernel drops silently when its hand-over ring is full, so the ring must outlast any time for which the
relay does not run: at 250,000 packets/s this one holds 40 ms. Such drops appear only in the device's
tx_dropped counter.
"""

_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_IFF_TUN, _IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x0002, 0x1000, 0x4000
_F_CSUM, _F_TSO4, _F_TSO6, _F_TSO_ECN, _F_USO4, _F_USO6 = 0x01, 0x02, 0x04, 0x08, 0x20, 0x40
_NAME_BYTES = 15


def open_tun(name: str, *, layer: Layer, offload: bool) -> int:
    """Make a device in the calling thread's network namespace and return its descriptor.

    The descriptor is non-blocking and closed on exec; the device is down and has no address.
    Raises NetlabError when the kernel refuses: no TUN support, no permission, or the name is taken.
    """
    if not 0 < len(name.encode()) <= _NAME_BYTES:
        raise NetlabError(f"interface name {name!r}: 1 to {_NAME_BYTES} bytes are allowed")
    fd = _open_clone_device(name)
    flags = (_IFF_TUN if layer == "ip" else _IFF_TAP) | _IFF_NO_PI | _IFF_VNET_HDR
    try:
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
        _set_offload(fd, offload)
    except OSError as error:
        os.close(fd)
        raise NetlabError(f"cannot make the TUN device {name}: {error.strerror}") from error
    return fd


def _open_clone_device(name: str) -> int:
    try:
        return os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise NetlabError(
            f"cannot make the TUN device {name}: /dev/net/tun: {error.strerror} (the relay needs a kernel with TUN)"
        ) from error


def _set_offload(fd: int, offload: bool) -> None:
    if not offload:
        fcntl.ioctl(fd, _TUNSETOFFLOAD, 0)
        return
    tcp = _F_CSUM | _F_TSO4 | _F_TSO6 | _F_TSO_ECN
    try:
        fcntl.ioctl(fd, _TUNSETOFFLOAD, tcp | _F_USO4 | _F_USO6)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fcntl.ioctl(fd, _TUNSETOFFLOAD, tcp)  # a kernel before 6.2 does not know UDP segmentation here
