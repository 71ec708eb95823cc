"""Commands that read and write the formats of other programs."""
