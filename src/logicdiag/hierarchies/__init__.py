"""The built-in hierarchies, one YAML file each."""
