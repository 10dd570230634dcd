"""The log of packets: what is written is what is read, its bounds are told, and a damaged one is refused."""

from __future__ import annotations

import os
import struct
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netlab import read_packets
from netlab.cli import main
from netlab.cli_packets import summary
from netlab.errors import UserError
from netlab.links import _relay
from netlab.packets import FATES, FLAGS, RECORD, RECORD_BYTES, create, log_path, read_header

NAMES = ("a>b", "b>a")


def record(number=1, arrival=0, release=0, written=0, segments=1, direction=0, fate=0, flags=0):
    return (number, arrival, release, written, 100, 138, segments, direction, fate, flags, 0)


def log(folder, records, left_out=0, limit=1000):
    path = folder / "packets.netlab"
    fd, offset = create(path, NAMES, "p", limit)
    with os.fdopen(fd, "r+b") as file:
        file.seek(16)
        file.write(struct.pack("=QQ", len(records), left_out))
        file.seek(offset)
        file.write(np.array(records, dtype=RECORD).tobytes())
    return path


def test_the_record_is_the_struct_of_the_core_field_by_field():
    struct_type = _relay.ffi.typeof("struct nl_fate")
    renamed = {"fate": "kind"}
    expected = [(name, field.offset) for name, field in struct_type.fields]
    dtype = np.dtype(RECORD)
    assert [(renamed.get(name, name), dtype.fields[name][1]) for name in dtype.names] == expected
    assert dtype.itemsize == _relay.ffi.sizeof(struct_type) == RECORD_BYTES


def test_fates_and_flags_have_the_numbers_of_the_core():
    kinds = _relay.ffi.typeof("enum nl_fate_kind").relements
    assert [kinds[f"NL_FATE_{fate.upper()}"] for fate in FATES] == list(range(len(kinds)))
    bits = _relay.ffi.typeof("enum nl_fate_flag").relements
    assert [bits[f"NL_FATE_{flag.upper()}"] for flag in FLAGS] == [1 << bit for bit in range(len(bits))]


def test_packets_come_in_the_order_of_arrival_with_their_times_and_marks(tmp_path):
    path = log(tmp_path, [
        record(2, arrival=500, release=1500, written=1510, direction=1, flags=4),
        record(1, arrival=100, fate=FATES.index("queue")),
        record(1, arrival=300, release=1300, written=1303, segments=45, flags=1 | 8),
    ])  # fmt: skip
    table = read_packets(path)
    assert list(table["arrival_ns"]) == [100, 300, 500]
    assert list(table["direction"]) == ["a>b", "a>b", "b>a"]
    assert list(table["fate"]) == ["queue", "passed", "passed"]
    assert table["delay_ns"].tolist()[1:] == [1003, 1010]
    assert table["late_ns"].tolist()[1:] == [3, 10]
    assert table["written_ns"].isna().tolist() == [True, False, False]
    assert table["delay_ns"].isna().tolist() == [True, False, False]
    assert list(table["overtook"]) == [False, False, True]
    assert list(table["copy"]) == list(table["marked"]) == [False, True, False]
    assert table["segments"].sum() == 47


def test_what_a_bounded_log_left_out_is_told(tmp_path, capsys):
    path = log(tmp_path, [record()], left_out=7, limit=1)
    assert read_packets(path).attrs["left_out"] == 7
    assert main(["packets", str(path)]) == 0
    assert "1 packets, and 7 left out (the log holds 1)" in capsys.readouterr().out


def test_a_log_whose_writer_was_killed_between_header_and_records_is_read_as_far_as_it_goes(tmp_path):
    path = log(tmp_path, [record(arrival=1), record(arrival=2)])
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 10)
    assert list(read_packets(path)["arrival_ns"]) == [1]


def test_an_empty_log_is_an_empty_table(tmp_path):
    table = read_packets(log(tmp_path, []))
    assert len(table) == 0
    assert summary(table, "a>b") == {
        "direction": "a>b", "packets": 0, "fates": {}, "delay_ms": {"p50": None, "p99": None, "max": None},
        "marked": 0, "corrupted": 0, "overtook": 0, "copy": 0,
    }  # fmt: skip


def test_a_summary_counts_the_packets_in_a_unit_and_the_time_of_those_that_passed(tmp_path):
    passed = [record(arrival=1, written=1 + ms * 1_000_000, release=2, segments=10) for ms in range(1, 101)]
    lost = [record(arrival=1, fate=FATES.index("loss"), segments=3)] * 2
    found = summary(read_packets(log(tmp_path, passed + lost)), "a>b")
    assert (found["packets"], found["fates"]) == (1006, {"passed": 1000, "loss": 6})
    assert found["delay_ms"]["p50"] == pytest.approx(50.5)
    assert found["delay_ms"]["max"] == pytest.approx(100)


def test_csv_and_parquet_hold_every_packet(tmp_path, capsys):
    path = log(tmp_path, [record(number) for number in range(5)])
    csv, parquet = tmp_path / "p.csv", tmp_path / "p.parquet"
    assert main(["packets", str(tmp_path), "--csv", str(csv), "--parquet", str(parquet), "--json"]) == 0
    assert '"records": 5' in capsys.readouterr().out
    for table in (pd.read_csv(csv), pd.read_parquet(parquet)):
        assert list(table["number"]) == list(range(5))
        assert set(table["fate"]) == {"passed"}
    assert path.exists()


def test_a_folder_means_the_log_in_it(tmp_path):
    assert log_path(str(tmp_path)) == tmp_path / "packets.netlab"
    assert log_path("new/").name == "packets.netlab"
    assert log_path(str(tmp_path / "x")) == tmp_path / "x"


@pytest.mark.parametrize("limit", [0, -1, 1 << 41])
def test_a_limit_out_of_range_is_refused(tmp_path, limit):
    with pytest.raises(UserError, match=r"1 to 1099511627776 records are allowed"):
        create(tmp_path / "x", NAMES, "p", limit)


@pytest.mark.parametrize("spoil", [
    lambda data: b"x" + data[1:], lambda data: data[:40], lambda data: data[:60],
    lambda data: data[:48] + b"}" + data[49:], lambda data: data[:12] + b"\x31" + data[13:], lambda data: b"",
    lambda data: data[:-RECORD_BYTES] + data[-RECORD_BYTES:].replace(b"\x07\x00", b"\xff\xff"),
])  # fmt: skip
def test_any_other_file_is_refused_with_a_readable_line(tmp_path, capsys, spoil):
    path = log(tmp_path, [record(segments=1, direction=0)])
    data = path.read_bytes()
    # the last record's direction becomes 7, which there is not
    path.write_bytes(spoil(data[:-6] + b"\x07\x00" + data[-4:]))
    assert main(["packets", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("netlab: ")
    assert str(path) in said


@given(st.binary(max_size=200), st.integers(0, 300))
def test_no_damage_leads_to_anything_but_a_readable_line_or_a_table(tmp_path_factory, junk, at):
    path = log(tmp_path_factory.mktemp("log"), [record(), record()])
    data = path.read_bytes()
    path.write_bytes(data[:at] + junk + data[at + len(junk) :])
    with suppress(UserError):
        read_packets(path)


def test_a_missing_log_is_a_users_mistake(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        read_header(tmp_path / "none")
