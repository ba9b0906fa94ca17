# SPDX-License-Identifier: Apache-2.0
"""How tools/bench/compare.py reads the results of the benchmarks and compares them; the benchmarks themselves are not run."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tools" / "bench"), str(ROOT / "tools" / "demo")]

import compare  # noqa: E402


def engine_bench_files(folder, *successful):
    rows = "".join(f"doc0_q{i},{ok},{(i + 1) / 10},\n" for i, ok in enumerate(successful))
    (folder / "bench_results.csv").write_text("request_id,successful,ttft,error\n" + rows)
    (folder / "bench_summary.json").write_text(json.dumps({"results": {"input_throughput": 123.5}}))


def test_engine_bench_is_read_in_milliseconds(tmp_path):
    engine_bench_files(tmp_path, True, True)
    assert compare.read_engine_bench(tmp_path) == {"ttft": [100, 200], "rate": 123.5, "answers": None}


def test_a_failed_request_is_an_error(tmp_path):
    engine_bench_files(tmp_path, True, False)
    with pytest.raises(compare.Failed, match="1 of 2 requests failed"):
        compare.read_engine_bench(tmp_path)


def multi_turn_files(folder, count):
    stats, answers = folder / "stats.json", folder / "answers.json"
    stats.write_text(json.dumps([{"start_time_ms": 5000.0 + 1000 * i, "latency_ms": 500.0, "ttft_ms": 10.0 * i,
                                  "input_num_tokens": 100} for i in range(count)]))
    answers.write_text('[{"id": "a"}]')
    return stats, answers


def test_multi_turn_counts_tokens_over_the_whole_run(tmp_path):
    count = compare.REQUESTS
    figures = compare.read_multi_turn(*multi_turn_files(tmp_path, count))
    assert figures["ttft"] == [10.0 * i for i in range(count)] and figures["answers"] == [{"id": "a"}]
    assert figures["rate"] == pytest.approx(100 * count / (count - 0.5))


def test_a_conversation_that_ended_early_is_an_error(tmp_path):
    with pytest.raises(compare.Failed, match="requests, not"):
        compare.read_multi_turn(*multi_turn_files(tmp_path, compare.REQUESTS - 1))


def test_each_setup_begins_a_round():
    assert compare.orders(["a", "b", "c"], 4) == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]


def result(number, setup, ttft, computed, rate, answer="same"):
    figures = {"ttft": ttft, "rate": rate, "sources": {"computed": computed, "own": 0, "loaded": 100 - computed}, "answers": [answer]}
    return {"round": number, "setup": setup, "figures": dict.fromkeys(compare.LOADS, figures)}


def test_ratios_are_of_the_same_round():
    results = [result(1, "none", [100, 100], 100, 10), result(1, "tierce", [50, 50], 20, 30),
               result(2, "tierce", [150, 150], 40, 20), result(2, "none", [200, 200], 100, 5)]
    rows = {row[0]: row[1:] for row in compare.rows_of(results, compare.LOADS[0])}
    assert rows["tierce"] == ("4", "100", "150", "150", "0.62 (0.50 to 0.75)", "70% (60% to 80%)", "25 (20 to 30)",
                              "3.50 (3.00 to 4.00)")
    assert rows["none"][5] == "0% (0% to 0%)"


def test_a_run_with_other_answers_is_named():
    results = [result(1, "none", [1], 1, 1), result(1, "tierce", [1], 1, 1), result(2, "lmcache", [1], 1, 1, "other")]
    assert compare.different_answers(results) == [(2, "lmcache")]
