"""Data sets and their file formats, the partition, batches and augmentation."""

from __future__ import annotations

from crad.data.catalog import DATASETS, data_directory, load_dataset
from crad.data.dataset import Dataset, check_dataset
from crad.data.subsets import balanced_subset, split_proxy

__all__ = [
    "DATASETS",
    "Dataset",
    "balanced_subset",
    "check_dataset",
    "data_directory",
    "load_dataset",
    "split_proxy",
]
