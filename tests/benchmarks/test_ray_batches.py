"""The script that measures batches over Ray: its arithmetic, and a small run of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ray_batches import rate


def test_a_rate_counts_from_the_end_of_the_first_part():
    assert rate([(12.0, 300), (10.0, 500), (11.0, 100)]) == 200  # 100 + 300 rows in two seconds


@pytest.mark.system
def test_a_small_benchmark_runs_every_way(exits_run):
    script = Path(__file__).parents[2] / "benchmarks" / "ray_batches.py"
    words = ["--run", exits_run, "--pictures", 400, "--part", 100, "--rounds", 1, "--json"]
    done = subprocess.run(
        [sys.executable, script, *map(str, words)], capture_output=True, text=True, timeout=200, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [len(rates) for rates in found["rates"].values()] == [1, 1, 1]
    assert found["of_one_worker"] > 0
