"""Makes the traces in this folder. Every figure comes from the formulas below: nothing here was measured.

    python profiles/traces/generate.py [FOLDER]

writes the files anew, byte for byte the same on every machine; a test holds the committed ones to it. Published facts
that the formulas follow are named where they are used; all other constants are assumptions, chosen to be of the right
order, and are yours to replace.

Notation: u is uniform on (0, 1), z = the standard normal quantile of u; each file has its own seed.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist

HERE = Path(__file__).parent
MS_PER_S = 1000
PACKET_BITS = 1500 * 8


class Noise:
    """Random figures that are the same everywhere: Python promises its uniform numbers, and the rest is arithmetic."""

    def __init__(self, seed: int) -> None:
        """Start the sequence of this seed."""
        self._uniform = random.Random(seed)

    def between(self, low: float, high: float) -> float:
        """low + (high - low) u."""
        return low + (high - low) * self._uniform.random()

    def normal(self) -> float:
        """z."""
        return NormalDist().inv_cdf(min(max(self._uniform.random(), 1e-9), 1 - 1e-9))


def wander(noise: Noise, step_s: float, memory_s: float) -> Iterator[float]:
    """g(t), normal with mean 0 and deviation 1, whose correlation over a time d is exp(-d / memory).

    g(0) = z; g(t + step) = r g(t) + sqrt(1 - r^2) z, with r = exp(-step / memory).
    """
    kept = math.exp(-step_s / memory_s)
    value = noise.normal()
    while True:
        yield value
        value = kept * value + math.sqrt(1 - kept * kept) * noise.normal()


def lte_down(seconds: int = 60, step_ms: int = 200) -> str:
    """Downlink of one LTE user, every 200 ms for 60 s.

    rate = 30 Mbit/s x 2^g(t), between 2 and 100 Mbit/s, g with a memory of 3 s (fading and other users);
    delay one way = 20 ms + 10 ms x u (scheduling and retransmission of the radio), in steps of 0.1 ms.
    """
    noise = Noise(1)
    rates = wander(noise, step_ms / MS_PER_S, 3.0)
    lines = ["# Made by generate.py (lte_down): not measured.", "time_ms,rate_mbit,delay_ms"]
    for step in range(seconds * MS_PER_S // step_ms):
        rate = min(max(30 * 2 ** next(rates), 2), 100)
        lines.append(f"{step * step_ms},{rate:.2f},{20 + noise.between(0, 10):.1f}")
    return "\n".join(lines) + "\n"


def lte_up(seconds: int = 12) -> str:
    """Uplink of one LTE user as a Mahimahi packet-delivery trace of 12 s.

    The base station grants the uplink every 8 ms (the cycle of LTE's uplink retransmission). A grant carries
    6 Mbit/s x 2^g(t) x 8 ms, g with a memory of 2 s and between -3 and 2; what is left of a packet of 1500 bytes
    is carried over to the next grant.
    """
    grant_ms = 8
    fading = wander(Noise(2), grant_ms / MS_PER_S, 2.0)
    bits, lines = 0.0, ["# Made by generate.py (lte_up): not measured. One packet of 1500 bytes a line, in ms."]
    for time_ms in range(grant_ms, seconds * MS_PER_S + 1, grant_ms):
        bits += 6e6 * 2 ** min(max(next(fading), -3), 2) * grant_ms / MS_PER_S
        lines += [str(time_ms)] * int(bits // PACKET_BITS)
        bits %= PACKET_BITS
    return "\n".join(lines) + "\n"


def starlink(seed: int, low_mbit: float, high_mbit: float, seconds: int = 120, step_ms: int = 500) -> str:
    """One direction of a link over a low satellite constellation, every 500 ms for 120 s.

    The terminal gets another satellite every 15 s (published: Tanveer et al., "Making Sense of Constellations",
    arXiv 2307.00402, 2023). Per period: a delay one way of 14 to 24 ms and a rate of `low` to `high`, both uniform.
    Within it, the delay drifts by up to 2 ms, evenly (the satellite moves), the rate by a factor 1 + 0.15 g(t), g with
    a memory of 2 s and between -2 and 2; loss is 0.1 %, in the first half second of a period 3 %.
    """
    noise, period = Noise(seed), 15 * MS_PER_S
    load = wander(noise, step_ms / MS_PER_S, 2.0)
    lines = ["# Made by generate.py (starlink): not measured.", "time_ms,rate_mbit,delay_ms,loss_percent"]
    delay = drift = rate = 0.0
    for time_ms in range(0, seconds * MS_PER_S, step_ms):
        if time_ms % period == 0:
            delay, drift, rate = noise.between(14, 24), noise.between(-2, 2), noise.between(low_mbit, high_mbit)
        at = delay + drift * (time_ms % period) / period
        factor = 1 + 0.15 * min(max(next(load), -2), 2)
        lines.append(f"{time_ms},{rate * factor:.2f},{at:.2f},{0.1 if time_ms % period else 3}")
    return "\n".join(lines) + "\n"


TRACES = {
    "lte-down.csv": lte_down,
    "lte-up.mahimahi": lte_up,
    "starlink-down.csv": lambda: starlink(3, 60, 220),
    "starlink-up.csv": lambda: starlink(4, 8, 25),
}


def main(folder: Path) -> None:
    """Write every trace."""
    for name, make in TRACES.items():
        (folder / name).write_text(make(), encoding="ascii")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
