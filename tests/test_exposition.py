"""Pages for Prometheus: counters, gauges, histograms, and that labels are escaped."""

from __future__ import annotations

from execserver.exposition import Histogram, counter_lines, gauge_lines, page, process_lines


def test_a_histogram_counts_what_is_at_most_as_large() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.add(value, ("a",))
    histogram.add(2.0, ("b",))
    assert histogram.lines("t_seconds", "Times", ("kind",)) == [
        "# HELP t_seconds Times",
        "# TYPE t_seconds histogram",
        't_seconds_bucket{kind="a",le="0.1"} 2',
        't_seconds_bucket{kind="a",le="1"} 3',
        't_seconds_bucket{kind="a",le="+Inf"} 4',
        't_seconds_sum{kind="a"} 7.65',
        't_seconds_count{kind="a"} 4',
        't_seconds_bucket{kind="b",le="0.1"} 0',
        't_seconds_bucket{kind="b",le="1"} 0',
        't_seconds_bucket{kind="b",le="+Inf"} 1',
        't_seconds_sum{kind="b"} 2',
        't_seconds_count{kind="b"} 1',
    ]
    assert histogram.count(("a",)) == 4
    assert histogram.count(("c",)) == 0


def test_counters_have_a_line_before_the_first_event_and_sorted_ones_after() -> None:
    assert counter_lines("n_total", "N", (), []) == [
        "# HELP n_total N",
        "# TYPE n_total counter",
        "n_total 0",
    ]
    lines = counter_lines("n_total", "N", ("a", "b"), {("y", "1"): 2, ("x", "1"): 3}.items())
    assert lines[2:] == ['n_total{a="x",b="1"} 3', 'n_total{a="y",b="1"} 2']


def test_labels_are_escaped() -> None:
    (line,) = counter_lines("n_total", "N", ("a",), [(('q"\\\n',), 1)])[2:]
    assert line == 'n_total{a="q\\"\\\\\\n"} 1'


def test_a_page_ends_with_a_line_end() -> None:
    assert page(gauge_lines("g", "G", 0.25)) == b"# HELP g G\n# TYPE g gauge\ng 0.25\n"
    assert {line.split(" ")[0] for line in process_lines() if not line.startswith("#")} == {
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_open_fds",
    }
