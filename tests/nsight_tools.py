"""Fake ``nsys`` and ``ncu`` that write the files of the real ones, with known figures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

NSYS = """
import sqlite3, sys
words = sys.argv[1:]
output = next(word.partition("=")[2] for word in words if word.startswith("--output="))
if words[0] == "profile":
    open(output, "w").write(" ".join(words))
else:
    rows = sqlite3.connect(output)
    rows.execute("create table StringIds (id integer, value text)")
    names = ["gemm", "relu", "cudaStreamSynchronize_v3020", "cudaLaunchKernel_v7000"]
    rows.executemany("insert into StringIds values (?, ?)", list(enumerate(names)))
    if WITH_KERNELS:
        rows.execute("create table CUPTI_ACTIVITY_KIND_KERNEL (start integer, end integer, shortName integer)")
        kernels = [(0, 300_000, 0), (200_000, 400_000, 1), (600_000, 700_000, 0)]
        rows.executemany("insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, ?)", kernels)
        columns = "start integer, end integer, bytes integer, copyKind integer"
        rows.execute(f"create table CUPTI_ACTIVITY_KIND_MEMCPY ({columns})")
        rows.execute("insert into CUPTI_ACTIVITY_KIND_MEMCPY values (900000, 1000000, 5000000, 2)")
        rows.execute("create table CUPTI_ACTIVITY_KIND_RUNTIME (start integer, end integer, nameId integer)")
        rows.executemany("insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?, ?, ?)", [(0, 7_000_000, 2), (0, 9, 3)])
    rows.commit()
"""

NCU = """
import sys
words = sys.argv[1:]
if any(word.startswith("--import=") for word in words):
    counters = sys.argv[0] + ".counters"
    print("==PROF== Connected")
    print(open(counters).read())
else:
    output = next(word.partition("=")[2] for word in words if word.startswith("--export="))
    open(sys.argv[0] + ".called", "w").write(" ".join(words))
    open(output, "w").write("report")
"""

COUNTERS = """\
"ID","Kernel Name","sm__warps_active.avg.pct_of_peak_sustained_active",\
"smsp__thread_inst_executed_per_inst_executed.ratio","l1tex__t_sector_hit_rate.pct",\
"lts__t_sector_hit_rate.pct","gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",\
"sm__throughput.avg.pct_of_peak_sustained_elapsed","launch__registers_per_thread","gpu__time_duration.sum"
"","","%","","%","%","%","%","register/thread","ns"
"0","gemm","50","31.5","10","80","30","85","128","1,000,000"
"1","gemm","52","31.5","12","82","32","87","128","1,000,000"
"2","relu","90","32","5","40","92","20","16","500,000"
"3","old","n/a","","","","","","",""
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> Path:
    """Put a tool on PATH, and nothing else."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!{sys.executable}\n{script}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return program
