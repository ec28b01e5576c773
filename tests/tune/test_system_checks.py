from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from vitascope.errors import DeviceError
from vitascope.gpu.profiling.utilisation import GpuSettings
from vitascope.tune import system_checks
from vitascope.tune.system_checks import check_system, processor_throttle_count

ROOMY = SimpleNamespace(free=500 << 30)


def linux(root, *, governor="performance", pages="always [madvise] never", swap=(0, 0), intel=False):
    cpus = root / "sys/devices/system/cpu"
    for number, text in enumerate(governor.split()):
        folder = cpus / f"cpu{number}" / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(f"{text}\n")
    if intel:
        (cpus / "intel_pstate").mkdir()
    huge = root / "sys/kernel/mm/transparent_hugepage"
    huge.mkdir(parents=True)
    (huge / "enabled").write_text(f"{pages}\n")
    (root / "proc").mkdir()
    total, free = swap
    (root / "proc/meminfo").write_text(f"MemTotal: 100 kB\nSwapTotal: {total} kB\nSwapFree: {free} kB\n")
    return root


def checks(monkeypatch, root, *, usage=ROOMY, files=4096, **words):
    monkeypatch.setattr(system_checks.shutil, "disk_usage", lambda _: usage)
    if sys.platform != "win32":
        import resource

        monkeypatch.setattr(resource, "getrlimit", lambda which: (files, files))
    return {check.name: check for check in check_system(root=root, **words)}


def test_all_is_well(tmp_path, monkeypatch):
    found = checks(monkeypatch, linux(tmp_path))
    assert [check.name for check in found.values() if check.advice] == []
    assert found["CPU governor"].text == "performance"
    assert found["huge pages"].text == "madvise"
    assert found["swap"].text == "none"
    assert found["free for temporary files"].found.startswith("500.0 GiB in ")


@pytest.mark.parametrize(
    ("name", "system", "words"),
    [
        (
            "CPU governor",
            {"governor": "performance powersave"},
            "cpupower frequency-set -g performance",
        ),
        ("huge pages", {"pages": "always madvise [never]"}, "transparent_hugepage"),
        ("swap", {"swap": (4 << 20, 3 << 20)}, "memory ran short"),
    ],
)
def test_what_is_not(tmp_path, monkeypatch, name, system, words):
    found = checks(monkeypatch, linux(tmp_path, **system))
    assert [check.name for check in found.values() if check.advice] == [name]
    assert words in found[name].text


def test_intel_names_its_governor_differently(tmp_path, monkeypatch):
    found = checks(monkeypatch, linux(tmp_path, governor="powersave", intel=True))
    assert found["CPU governor"].advice is None


def test_a_little_swap_is_no_harm(tmp_path, monkeypatch):
    found = checks(monkeypatch, linux(tmp_path, swap=(4 << 20, (4 << 20) - 1000)))
    assert found["swap"].text == "0.0 of 4.0 GiB in use"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limits")
def test_few_files(tmp_path, monkeypatch):
    assert "ulimit -n 1024" in checks(monkeypatch, linux(tmp_path), files=256)["open files"].text


def test_a_full_disk(tmp_path, monkeypatch):
    models = tmp_path / "not" / "made" / "yet"
    found = checks(
        monkeypatch, linux(tmp_path), usage=SimpleNamespace(free=1 << 30), folders={"networks": models}
    )
    assert found["free for networks"].text.startswith(f"1.0 GiB in {models}; free some space")


def test_a_system_that_tells_nothing(tmp_path, monkeypatch):
    names = set(checks(monkeypatch, tmp_path))
    assert names <= {"open files", "locked memory", "free for temporary files"}


def test_gpus(tmp_path, monkeypatch):
    class Gpu:
        def __init__(self, number):
            if number == 1:
                raise DeviceError("NVML knows no GPU 1")

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def settings(self):
            return GpuSettings(power_watts=250.0, power_default_watts=350.0, keeps_driver_loaded=False)

    monkeypatch.setattr(system_checks, "NvmlGpu", Gpu)
    found = checks(monkeypatch, tmp_path, gpus=2)
    assert found["GPU 0, power limit"].text == "250 W; less than its 350 W: sudo nvidia-smi -i 0 -pl 350"
    assert found["GPU 0, persistence mode"].text == "off; each start reloads it: sudo nvidia-smi -i 0 -pm 1"
    assert found["GPU 1"].text == "not checked: NVML knows no GPU 1"


def test_this_machine_can_be_looked_at():
    for check in check_system():
        assert check.name
        assert "\n" not in check.text


def test_how_often_heat_slowed_the_processor_down(tmp_path):
    assert processor_throttle_count(tmp_path) is None
    for number, count in enumerate(["3\n", "4\n", "odd\n"]):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{number}/thermal_throttle"
        folder.mkdir(parents=True)
        (folder / "core_throttle_count").write_text(count)
    assert processor_throttle_count(tmp_path) == 7


def test_threads_of_one_core_count_its_heat_once(tmp_path):
    for number, (siblings, count) in enumerate([("0,2", 5), ("1,3", 2), ("0,2", 5), ("1,3", 3)]):
        processor = tmp_path / f"sys/devices/system/cpu/cpu{number}"
        (processor / "thermal_throttle").mkdir(parents=True)
        (processor / "topology").mkdir()
        (processor / "thermal_throttle/core_throttle_count").write_text(f"{count}\n")
        (processor / "topology/thread_siblings_list").write_text(f"{siblings}\n")
    assert processor_throttle_count(tmp_path) == 5 + 3
