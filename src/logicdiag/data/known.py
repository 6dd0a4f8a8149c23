"""Published lists of labelled images, by fingerprint. The lists themselves are not kept here."""

KNOWN: dict[str, str] = {}
