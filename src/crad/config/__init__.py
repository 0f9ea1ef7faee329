"""The settings of one experiment: `Experiment`, what each of them is, and how people write them."""

from crad.config.experiment import Experiment, changed_settings, make_experiment, stored_experiment, to_toml
from crad.config.notation import parse_pairs, setting_text, settings_by_method, to_flags
from crad.config.older_names import ALIASES, older_names, with_current_names, with_stored_names
from crad.config.presets import PRESETS
from crad.config.recipes import PUBLISHED, RECIPES, Recipe
from crad.config.setting import (
    ALWAYS_THERE,
    NONE,
    AtLeastOne,
    AttackKind,
    ClipNorm,
    Device,
    DistillAugment,
    EvidenceSource,
    FilterKind,
    Panel,
    Positive,
    Role,
    Setting,
    Sharing,
    Standardize,
    TeacherPrior,
    TextLine,
    Unsupported,
)
from crad.config.setting_lists import names_of, names_where, setting_of

__all__ = [
    "ALIASES",
    "ALWAYS_THERE",
    "NONE",
    "PRESETS",
    "PUBLISHED",
    "RECIPES",
    "AtLeastOne",
    "AttackKind",
    "ClipNorm",
    "Device",
    "DistillAugment",
    "EvidenceSource",
    "Experiment",
    "FilterKind",
    "Panel",
    "Positive",
    "Recipe",
    "Role",
    "Setting",
    "Sharing",
    "Standardize",
    "TeacherPrior",
    "TextLine",
    "Unsupported",
    "changed_settings",
    "make_experiment",
    "names_of",
    "names_where",
    "older_names",
    "parse_pairs",
    "setting_of",
    "setting_text",
    "settings_by_method",
    "stored_experiment",
    "to_flags",
    "to_toml",
    "with_current_names",
    "with_stored_names",
]
