"""The command itself: its version, completion in a shell, and which command goes on with what."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

import crad
from crad.cli import main
from crad.config import to_toml
from tests.conftest import change

PROGRAM = "import sys; sys.argv[0] = 'crad'; from crad.cli import main; main()"


def crad_process(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `crad ARGS` in a process of its own, with these environment variables."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120)


def test_the_version_is_said():
    done = crad_process("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"crad {crad.__version__}\n", "")


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("crad re", {"reproduce", "report"}),
        ("crad run --method", {"--method", "--method-settings"}),
        ("crad peer jo", {"join"}),
        ("crad run --output 'half a na", set()),
    ],
)
def test_a_shell_is_told_how_words_go_on(typed, expected):
    place = str(len(typed.split()) - 1)
    done = crad_process(_CRAD_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=place)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) >= expected
    assert bool(done.stdout.split()) == bool(expected)


def test_completion_is_installed_where_the_shell_looks(tmp_path):
    done = crad_process(
        "--install-completion", "bash", HOME=str(tmp_path), _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1"
    )
    assert done.returncode == 0, done.stderr
    assert "_CRAD_COMPLETE=complete_bash" in (tmp_path / ".bash_completions" / "crad.sh").read_text()
    assert "crad.sh" in (tmp_path / ".bashrc").read_text()


def test_resuming_a_comparison_says_the_command_that_does_it(tiny, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "two methods"
    for method in ("local", "crad"):
        for seed in (1, 2):
            run = folder / f"{method}-seed{seed}"
            run.mkdir(parents=True)
            (run / "experiment.toml").write_text(
                to_toml(change(tiny, method=method, seed=seed, clients=3, committee=True, metrics=True))
            )
    monkeypatch.setattr(sys, "argv", ["crad", "run", "--resume", str(folder)])
    with pytest.raises(SystemExit) as stopped:
        main()
    out, err = capsys.readouterr()
    assert (stopped.value.code, out, err.count("\n")) == (2, "", 1)
    said = shlex.split(err.partition("continue it with ")[2])
    assert said[:2] == ["crad", "compare"]
    given = dict(zip(said[2::2], said[3::2], strict=False))
    assert (set(given["--methods"].split(",")), given["--seeds"]) == ({"local", "crad"}, "1,2")
    assert (given["--clients"], given["--output"]) == ("3", str(folder))
