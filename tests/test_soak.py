"""The soak in short: one of four members is killed and comes back. The long one is `python -m tests.soak`."""

from __future__ import annotations

from tests.soak import soak


def test_a_killed_member_comes_back_and_everything_is_whole(tmp_path):
    outcome = soak(tmp_path, peers=4, rounds=3, kills=1, seed=1, patience_s=500, is_lean=True)
    assert outcome.faults == []
    assert len(outcome.kills) == 1
    assert outcome.files > 50
