"""Generators of hostile files."""
