"""Experiments: what the command line runs and draws."""
