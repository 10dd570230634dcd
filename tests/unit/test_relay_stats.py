"""Counters of a relayed direction as plain data: differences and quantiles."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from netlab.links.relay_stats import DirectionStats

ZERO = DirectionStats(
    **{
        field.name: "a>b" if field.name == "name" else () if field.name in ("lateness", "lateness_wake") else 0
        for field in fields(DirectionStats)
    }
)


def test_a_difference_describes_the_interval():
    earlier = replace(ZERO, packets_in=10, drops_queue=1, lateness=((7, 3), (15, 2)))
    later = replace(ZERO, packets_in=25, drops_queue=4, queue_bytes=99, lateness=((7, 3), (15, 6), (31, 1)))
    interval = later - earlier
    assert (interval.packets_in, interval.drops_queue) == (15, 3)
    assert interval.lateness == ((15, 4), (31, 1))
    assert interval.queue_bytes == 99, "what waits now is not a counter"


def test_peaks_survive_a_difference():
    earlier = replace(ZERO, lateness=(), queue_bytes_peak=5, lateness_max_ns=7)
    later = replace(ZERO, lateness=(), queue_bytes_peak=5, lateness_max_ns=9)
    assert ((later - earlier).queue_bytes_peak, (later - earlier).lateness_max_ns) == (5, 9)


def test_directions_of_different_names_do_not_subtract():
    with pytest.raises(ValueError, match="b>a"):
        _ = replace(ZERO, name="b>a") - ZERO


def test_a_quantile_is_the_upper_bound_of_its_bucket():
    stats = replace(ZERO, lateness=((100, 98), (200, 1), (300, 1)))
    assert [stats.lateness_quantile(q) for q in (0.5, 0.98, 0.99, 1.0)] == [100, 100, 200, 300]


def test_without_packets_there_is_no_quantile():
    assert replace(ZERO, lateness=()).lateness_quantile(0.99) is None


def test_losses_that_the_model_did_not_ask_for_are_summed():
    stats = replace(ZERO, drops_queue=100, drops_device=1, drops_memory=2, drops_malformed=4, drops_write_down=8)
    assert stats.drops_other == 15
