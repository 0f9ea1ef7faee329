"""The rules: who is kept x how the kept are weighed. A new rule is one entry here.

What a teacher says may be corrected before that, under every rule: `correction.py`.

A rule of your own is a `Rule` object, an entry point in the group `crad.rules`, or an import path
`package.module:name`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from crad.aggregation import filters, weights
from crad.aggregation.evidence import Evidence
from crad.aggregation.filters import FILTERS, Selection
from crad.config import RECIPES, FilterKind
from crad.errors import ConfigError
from crad.plugins import resolve


@dataclass(frozen=True)
class Rule:
    """One way to combine teachers: a filter and a weight over the shared combiner.

    Example:
        >>> import crad
        >>> from crad.aggregation.filters import median_filter
        >>> surest = crad.Rule(keep=median_filter, weigh=lambda evidence, selection: evidence.q_KBC**2)
        >>> crad.run(crad.Experiment(preset="demo"), rule=surest)  # doctest: +SKIP
    """

    keep: Callable[[Evidence], Selection]
    weigh: Callable[[Evidence, Selection], Tensor]
    needs_cross_entropy: bool = False  # a third published statistic, sent only for the rules that use it
    uses_statistics: bool = True  # whether it matters what is known of a teacher beside its predictions

    def with_filter(self, kind: FilterKind | None) -> Rule:
        """Return the same weights behind another filter; None: as it is."""
        if kind is None:
            return self
        if self.keep not in FILTERS.values():
            raise ConfigError(f"filter {kind!r} takes the place of CRAD's, and this rule has another or none")
        return replace(self, keep=FILTERS[kind])


CRAD = Rule(filters.median_filter, weights.precision)

RULES: dict[str, Rule] = {
    "crad": CRAD,
    "crad-plus": CRAD.with_filter(RECIPES["crad-plus"].filter),
    "uniform": Rule(filters.keep_all, weights.equal, uses_statistics=False),
    "uncertainty": Rule(filters.keep_all, weights.negative_entropy, uses_statistics=False),
    "stage1": Rule(filters.median_filter, weights.equal),
    "inverse-sigma": Rule(filters.median_filter, weights.inverse_sigma),
    "accuracy": Rule(filters.median_filter, weights.accuracy),
    "support": Rule(filters.median_filter, weights.support),
    "support-all": Rule(filters.support_filter, weights.support),
    "softmax-variance": Rule(filters.median_filter, weights.softmax_variance),
    "lcb": Rule(filters.median_filter, weights.lower_confidence_bound),
    "inverse-ce": Rule(filters.median_filter, weights.inverse_cross_entropy, needs_cross_entropy=True),
}


def resolve_rule(rule: str | Rule) -> Rule:
    """Return the rule behind a name, an entry point or an import path."""
    if isinstance(rule, Rule):
        return rule
    if not isinstance(rule, str):
        raise ConfigError(f"rule is a {type(rule).__name__}, expected a name or a crad.Rule(keep, weigh)")
    found = resolve("rule", rule, known=RULES, group="crad.rules")
    if not isinstance(found, Rule):
        raise ConfigError(f"rule {rule!r} is a {type(found).__name__}, expected a crad.Rule(keep, weigh)")
    return found


def has_published_filter(rule: str) -> bool:
    """Return whether the median filter is the rule's own, so that asking for it changes nothing.

    Of foreign ones not known.
    """
    return rule in RULES and RULES[rule].keep is CRAD.keep
