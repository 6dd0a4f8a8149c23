"""Symbols: hierarchies, rules, knowledge bases and what follows from them."""
