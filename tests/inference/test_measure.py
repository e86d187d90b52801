"""Times are taken in turn, of every call equally often. (How long a call takes is for the benchmarks.)"""

import os
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from supple.inference import timing as clock_module
from supple.inference.timing import interleave
from supple.machine import instruction_set, instructions, machine


@pytest.mark.parametrize(("rounds", "seconds", "calls"), [(5, 0.0, 5), (30, 0.0, 5), (30, -1.0, 5), (12, 1e9, 12)])
def test_every_call_is_made_once_per_round_in_turn(rounds: int, seconds: float, calls: int) -> None:
    order: list[str] = []
    times = interleave({name: lambda name=name: order.append(name) for name in "abc"}, rounds, seconds)
    assert "".join(order) == "aabbcc" + "abc" * calls  # two calls of each to warm up, not counted
    assert list(times) == ["a", "b", "c"]
    for measured in times.values():
        assert measured.calls == calls
        assert 0 <= measured.p50_ms <= measured.p95_ms <= measured.p99_ms


def test_where_another_runtime_begins_the_last_one_comes_to_rest_and_the_first_call_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    clock = SimpleNamespace(perf_counter=lambda: 0.0, sleep=lambda seconds: order.append("."))
    monkeypatch.setattr(clock_module, "time", clock)
    calls = {name: lambda name=name: order.append(name) for name in "abc"}
    times = interleave(calls, 5, runtimes={"a": "one", "b": "one", "c": "two"})
    assert "".join(order) == "aabbcc" + ".aab.cc" * 5
    assert {measured.calls for measured in times.values()} == {5}


@pytest.fixture
def sleep(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock that `interleave` reads; nothing else does."""
    clock = [0.0]
    monkeypatch.setattr(clock_module, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def advance(seconds: float) -> None:
        clock[0] += seconds

    return advance


def test_percentiles_by_hand_without_the_warm_up_calls(sleep: Callable[[float], None]) -> None:
    spent = iter([50.0, 50.0, *(k / 1000 for k in range(100, -1, -1))])  # 100, 99, ..., 0 ms after two slow calls
    times = interleave({"a": lambda: sleep(next(spent)), "b": lambda: sleep(0.007)}, rounds=101)
    assert (times["a"].p50_ms, times["a"].p95_ms, times["a"].p99_ms) == pytest.approx((50, 95, 99))
    assert (times["b"].p50_ms, times["b"].p95_ms, times["b"].p99_ms) == pytest.approx((7, 7, 7))
    assert (times["a"].iqr_ms, times["b"].iqr_ms) == pytest.approx((50, 0))  # from 25 to 75


@pytest.mark.parametrize(("seconds", "rounds"), [(7.0, 5), (15.0, 8), (16.0, 9), (1000.0, 30)])
def test_no_round_begins_after_the_seconds_are_used_up(
    sleep: Callable[[float], None], seconds: float, rounds: int
) -> None:
    """Two calls of a second each: round k begins after 2 k seconds."""
    times = interleave({"a": lambda: sleep(1.0), "b": lambda: sleep(1.0)}, 30, seconds)
    assert [measured.calls for measured in times.values()] == [rounds, rounds]


def test_the_machine_is_named_with_its_cores() -> None:
    assert machine() == machine()
    name, cores, *instructions = machine().split(", ")
    assert name
    assert cores == f"{os.cpu_count()} cores"
    assert " ".join(instructions) == instruction_set()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("flags\t\t: fpu sse2 fma avx2", "avx2"),
        ("flags\t\t: fpu avx2 avx512f avx512bw", "avx2 avx512"),
        ("flags\t\t: avx512_bf16 avx2 avx512_vnni avx512f", "avx2 avx512 bf16 vnni"),
        ("flags\t\t: avx2 avx512f amx_bf16 amx_tile", "avx2 avx512 bf16"),
        ("Features\t: fp asimd asimddp bf16 i8mm", "bf16 vnni"),
        ("bogomips\t: 4800", ""),
    ],
)
def test_the_instruction_set_is_read_from_what_the_kernel_says(line: str, expected: str) -> None:
    cpuinfo = f"processor\t: 0\nmodel name\t: A processor\n{line}\n\nprocessor\t: 1\n{line}\n"
    assert " ".join(instructions(cpuinfo)) == expected
