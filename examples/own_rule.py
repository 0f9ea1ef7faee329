"""A rule of your own: keep the supported and agreeing teachers, weigh each by how sure it is of the class.

    python examples/own_rule.py

or from the command line, in this folder:  crad run --preset demo --method own_rule:METHOD
"""

from torch import Tensor

import crad
from crad.aggregation import Evidence, Rule, Selection
from crad.aggregation.filters import median_filter
from crad.methods.distillation import distillation_method


def confidence(evidence: Evidence, selection: Selection) -> Tensor:
    """The teacher's own probability for the class, squared: [K,B,C]."""
    return evidence.q_KBC**2


METHOD = distillation_method("confident", Rule(keep=median_filter, weigh=confidence))

if __name__ == "__main__":
    for method in ("crad", "examples.own_rule:METHOD"):
        result = crad.run(crad.Experiment(preset="demo", method=method, rounds=3))
        print(f"{method:30} global accuracy {result.summary['global_accuracy']:.2f} %")
