"""Wheels for every target from one machine, and their checks. Part of a checkout, not of a wheel."""
