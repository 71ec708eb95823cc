"""The certificate of losslessness: enumeration of the real code, its audit, its controls."""
