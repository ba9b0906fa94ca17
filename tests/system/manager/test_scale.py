# SPDX-License-Identifier: Apache-2.0
"""A manager's index of 10^8 blocks, in memory and in RocksDB: memory of a block, restart, reclaim. For `make test-long`. It
took 60 minutes beside a load of 2 to 8 on two processors, of which it used 55; TIERCE_TEST_BLOCKS sets another number."""

import csv
import os
import shutil
import subprocess

import pytest

from manager_process import executable

BLOCKS = int(os.environ.get("TIERCE_TEST_BLOCKS", 10**8))
MEMORY_OF_BLOCK = 200  # bytes; more with places and quotas, see LOCATOR_MEMORY
LOCATOR_MEMORY = 50  # bytes of a block beside its record
DISK_OF_BLOCK = 500  # bytes; in RocksDB, twice: the bare library beside the index


@pytest.mark.long
def test_an_index_of_a_hundred_million_blocks(tmp_path):
    free = int(next(line for line in open("/proc/meminfo") if line.startswith("MemAvailable")).split()[1]) << 10
    needed = BLOCKS * (MEMORY_OF_BLOCK + LOCATOR_MEMORY) * 3 // 4
    if free < needed or shutil.disk_usage(tmp_path).free < BLOCKS * DISK_OF_BLOCK:
        pytest.skip(f"{BLOCKS} blocks need {needed >> 30} GiB of memory and {BLOCKS * DISK_OF_BLOCK >> 30} GiB of disk")
    out = subprocess.run([str(executable()), "bench", "manager", "reclaim", "--csv", "--blocks", str(BLOCKS), "--memory", str(free),
                          "--dir", str(tmp_path)], text=True, capture_output=True, check=True)
    print(out.stdout)
    rows = {row["case"].split(";")[0]: row for row in csv.DictReader(out.stdout.splitlines())}
    assert float(rows["memory a block"]["value"]) <= MEMORY_OF_BLOCK
    assert float(rows["rocksdb restart"]["value"]) <= 10000  # ms
    assert next(float(row["value"]) for case, row in rows.items() if case.startswith("memory index of ")) > 0
