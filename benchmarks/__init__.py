"""Measurements behind the decisions."""
