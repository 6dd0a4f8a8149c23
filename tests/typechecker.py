"""beartype, with an int accepted where a float is expected, as PEP 484 has it."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
