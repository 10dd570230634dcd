"""Files of measurements: what they say becomes rates and delays exactly, and a fault names its line."""

from fractions import Fraction as Rational

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netlab.errors import UnitError
from netlab.impairment import Chance
from netlab.timeline import Series
from netlab.traces import csv_series, delay_samples, mahimahi_series
from netlab.units import Delay, Fraction, Rate

MS = 1_000_000


def test_a_csv_says_what_holds_from_each_row_on():
    series = csv_series("time,rate,delay\n0s,10mbit,20ms\n1s,5mbit,\n2.5s,,30ms\n", "x.csv", loop=False)
    assert series == Series(
        (
            (0, {"rate": Rate(10**7), "delay": Delay(20 * MS)}),
            (1000 * MS, {"rate": Rate(5 * 10**6), "delay": Delay(20 * MS)}),
            (2500 * MS, {"rate": Rate(5 * 10**6), "delay": Delay(30 * MS)}),
        )
    )


def test_units_may_stand_in_the_header():
    plain = csv_series("time,rate,delay,loss\n0s,10mbit,20.5ms,1.5%\n", "x.csv", loop=False)
    headed = csv_series("time_s,rate_mbit,delay_ms,loss_percent\n0,10,20.5,1.5\n", "x.csv", loop=False)
    assert headed == plain
    assert plain.points[0][1]["loss"] == Chance(Fraction.parse("1.5%"))


def test_no_loss_is_none_and_a_state_is_up_or_down():
    series = csv_series("time_ms,loss,state\n0,0%,up\n10,,down\n", "x.csv", loop=False)
    assert [values for _, values in series.points] == [{"loss": None, "state": True}, {"loss": None, "state": False}]


def test_comments_blank_lines_and_a_byte_order_mark_are_passed_over():
    text = "\ufeff# made by hand\n\ntime_s,rate_mbit\n  # first\n0,1\n\n"
    assert csv_series(text, "x.csv", loop=True).points == ((0, {"rate": Rate(10**6)}),)


def test_a_loop_gives_the_last_row_as_long_as_the_one_before():
    assert csv_series("time_s,rate_mbit\n0,1\n2,2\n3,3\n", "x.csv", loop=True).loop_ns == 4 * 10**9
    assert csv_series("time_s,rate_mbit\n0,1\n", "x.csv", loop=True).loop_ns is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'x.csv' is empty"),
        ("# only\n", "'x.csv' is empty"),
        ("time,rate\n", "'x.csv' has no rows"),
        ("rate\n1mbit\n", "'x.csv' needs a column time and one at least of"),
        ("time\n0s\n", "'x.csv' needs a column time and one at least of"),
        ("time,rat\n0s,1mbit\n", "line 1: 'rat' is not a column: time, delay, rate, loss, state"),
        ("time,rat\n0s,1mbit\n", 'did you mean "rate"?'),
        ("time,,rate\n0s,1,1mbit\n", "line 1: '' is not a column"),
        ("time,rate,rate_mbit\n0s,1mbit,1\n", "line 1: two columns of rate"),
        ("time,rate\n0s,1mbit\n1s\n", "line 3: 1 cells in a table of 2 columns"),
        ("time,rate\n0s,1mbit,2\n", "line 2: 3 cells in a table of 2 columns"),
        ("time,rate\n0s,1mbit\n\n# x\n1s,fast\n", "line 5: rate: 'fast' is not a rate"),
        ("time,rate\n0s,1mbit\n,2mbit\n", "line 3: no time"),
        ("time,rate\n0s,1mbit\n0s,2mbit\n", "line 3: time 0s does not come after 0s"),
        ("time,rate\n1s,1mbit\n", "line 2: the first row of a looping series is at time 0, not 1s"),
        ("time_ms,rate\n0,0bit\n", "line 2: rate: '0bit': a rate must be between"),
        ("time_ms,delay_parsec\n0,1\n", "line 2: delay: '1parsec': unknown unit"),
        ("time_ms,state\n0,off\n", "line 2: state: 'off' is not allowed: up or down"),
        ("time_ms,loss\n0,1\n", "line 2: loss: '1' could be one percent or all"),
        ("time_ms,delay\n0,-1ms\n", "line 2: delay: '-1ms': a time cannot be negative"),
    ],
)
def test_a_faulty_csv_names_its_line(text, problem):
    with pytest.raises(UnitError) as caught:
        csv_series(text, "x.csv", loop=True)
    assert problem in str(caught.value)


def test_a_mahimahi_trace_becomes_the_rate_of_each_step():
    # 3 packets of 1538 wire bytes in the first 10 ms, none in the second, 1 in the last 5 ms
    series = mahimahi_series("1\n1\n10\n25\n", "t", 10 * MS, 1538, loop=True)
    assert series == Series(
        (
            (0, {"rate": Rate(3 * 1538 * 8 * 100)}),
            (10 * MS, {"rate": Rate(1000)}),
            (20 * MS, {"rate": Rate(1538 * 8 * 200)}),
        ),
        25 * MS,
    )


def test_a_packet_at_the_very_end_belongs_to_the_last_step():
    # 12 Mbit/s: one packet of 1500 bytes a millisecond, told from 1 to 1000
    text = "\n".join(str(ms) for ms in range(1, 1001))
    series = mahimahi_series(text, "t", 100 * MS, 1500, loop=True)
    assert {values["rate"] for _, values in series.points} == {Rate(12_000_000)}
    assert (len(series.points), series.loop_ns) == (10, 1000 * MS)


@given(st.lists(st.integers(0, 500), min_size=1, max_size=60).map(sorted), st.integers(1, 200))
def test_the_rates_of_a_trace_carry_its_packets_and_no_more(times, step_ms):
    if times[-1] == 0:
        times[-1] = 1
    series = mahimahi_series("\n".join(map(str, times)), "t", step_ms * MS, 1538, loop=True)
    ends = [at for at, _ in series.points[1:]] + [series.loop_ns]
    spans = [(end - at, values["rate"].bps) for (at, values), end in zip(series.points, ends, strict=True)]
    carried = sum(Rational(length * bps, 8 * 10**9) for length, bps in spans if bps > 1000)
    assert (
        0 <= len(times) * 1538 - carried < 1 + Rational(len(spans) * 200 * MS, 8 * 10**9)
    )  # 1 bit/s a step, no packet


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no packet after time 0"),
        ("0\n0\n", "no packet after time 0"),
        ("1\n3\n2\n", "line 3: 2 comes before 3: times must not decrease"),
        ("1\nx\n", "line 2: 'x' is not a whole number of milliseconds"),
        ("1.5\n", "line 1: '1.5' is not a whole number"),
        ("-1\n", "line 1: '-1' is not a whole number"),
        ("１\n", "is not a whole number"),
        ("9" * 5000, "is not a whole number"),
        ("99999999999\n", "is not a whole number"),
        ("2592000000\n", "has over 1000000 steps of 100ms"),
    ],
)
def test_a_faulty_trace_names_its_line(text, problem):
    with pytest.raises(UnitError) as caught:
        mahimahi_series(text, "t", 100 * MS, 1538, loop=True)
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 200


def test_more_than_a_terabit_is_refused():
    with pytest.raises(UnitError, match=r"10000 packets in 1ms exceed 1tbit"):
        mahimahi_series("1\n" * 10_000, "t", MS, 65_538 * 2, loop=True)


def test_delay_samples_are_one_column():
    assert delay_samples("delay_ms\n1\n2.5\n", "d") == [MS, 2_500_000]
    assert delay_samples("delay\n1us\n", "d") == [1000]
    with pytest.raises(UnitError, match=r"'d': measured delays are one column, delay or delay_ms, not time, delay"):
        delay_samples("time,delay\n0s,1ms\n", "d")


@given(st.text(alphabet="0123456789.,-\n #time_msrate_mbitdelaylosu%\x00é", max_size=200), st.booleans())
def test_any_text_is_a_series_or_one_readable_line(text, loop):
    refusals = []
    for read in (
        lambda: csv_series(text, "x", loop),
        lambda: mahimahi_series(text, "x", 100 * MS, 1538, loop),
        lambda: delay_samples(text, "x"),
    ):
        try:
            read()
        except UnitError as error:
            refusals.append(str(error))
    assert all(refusal.isprintable() and refusal.startswith("'x'") for refusal in refusals)
