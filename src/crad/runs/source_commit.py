"""From which commit of its source tree this package runs; nothing where it is installed or git does not answer."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
TIMEOUT_S = 5.0


@functools.cache  # what runs is what was there when it began
def source_commit() -> str | None:
    """Return the short hash of the commit, with `-dirty` where a file of it was changed since."""
    return commit_of(PACKAGE.parents[1])


def commit_of(root: Path) -> str | None:
    """Return the commit of a clone of this project; None of any other folder, such as one a package is installed in."""
    if not ((root / ".git").exists() and (root / "src" / "crad").is_dir() and (root / "pyproject.toml").is_file()):
        return None
    words = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"]
    # A hook that runs this has variables that name another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        said = subprocess.run(  # noqa: S603  # our own words, no shell
            words,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.decode(errors="replace").strip() or None
