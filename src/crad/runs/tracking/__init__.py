"""`--tensorboard` and `--mlflow`: the scalars of every round, logged where other experiments are.

The packages are the extra `crad[tracking]`, imported only when one is asked for.
"""

from crad.runs.tracking.tracker import Log, Tracker

__all__ = ["Log", "Tracker"]
