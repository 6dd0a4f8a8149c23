"""Psi: what turns a teacher's prediction into a target."""
