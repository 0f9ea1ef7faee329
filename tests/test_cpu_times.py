"""Processor times of tests: what is measured, what is listed as slow, and that the list names tests that exist."""

from __future__ import annotations

import ast
import functools
import json
import os
import subprocess
import sys

from tests.conftest import ROOT
from tests.cpu_times import read_slow_tests

MEASURED = """
import subprocess, sys, time

import pytest


@pytest.fixture(scope="module")
def worked():
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass


def test_waits():
    time.sleep(0.3)


def test_works(worked):
    pass


def test_has_a_child_work():
    code = "import time\\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
"""


def test_every_slow_test_exists():
    for name in read_slow_tests():
        file, *_, function = name.split("::")  # a class may stand between
        assert function in names_of_tests(file), f"tests/slow.txt names {name}, which is gone: change its line"


@functools.cache
def names_of_tests(file):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_what_is_slow_is_marked(request):
    """Of what this session has collected: all tests in a run of all, and none where slow ones are left out."""
    collected = {item: item.nodeid.partition("[")[0] for item in request.session.items}
    marked = {name for item, name in collected.items() if item.get_closest_marker("slow")}
    assert marked == set(collected.values()) & set(read_slow_tests())


def test_processor_time_counts_children_and_fixtures_but_not_waiting(tmp_path):
    (tmp_path / "test_measured.py").write_text(MEASURED)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        "-p",
        "tests.cpu_times",
        "-p",
        "no:cacheprovider",
    ]
    subprocess.run([*command, str(tmp_path), "--cpu-times", str(tmp_path / "times")], cwd=ROOT, check=True)
    lines = [json.loads(line) for line in (tmp_path / "times").read_text().splitlines()]
    waits, works, child = (line for line in lines)
    assert waits["call"]["wall_s"] >= 0.3 > waits["call"]["cpu_s"]
    assert works["setup"]["cpu_s"] >= 0.3 > works["call"]["cpu_s"]
    assert child["call"]["cpu_s"] >= 0.3
