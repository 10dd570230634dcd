"""64 hosts on 8 Linux bridges in a ring, unshaped, by mininet: prints the seconds up and the seconds down.

Run by bench_network.py with the system's Python, which is where Debian puts mininet, in namespaces of its own: mininet
makes its switches in the namespace that it is started in, and would leave them there if it were killed.
"""

import logging
import time

from mininet.net import Mininet
from mininet.nodelib import LinuxBridge

SITES, HOSTS = 8, 8


def main():
    """Build, start, stop."""
    logging.disable(logging.CRITICAL)
    start = time.perf_counter()
    net = Mininet(switch=LinuxBridge, controller=None)
    switches = [net.addSwitch(f"s{site}", stp=True, prio=site) for site in range(SITES)]
    for site, switch in enumerate(switches):
        for host in range(HOSTS):
            net.addLink(net.addHost(f"h{site}x{host}"), switch)
        net.addLink(switch, switches[(site + 1) % SITES])
    net.start()
    up = time.perf_counter()
    net.stop()
    print(up - start, time.perf_counter() - up)


main()
