"""Inspection of decoding: traces, pages, profiles, forecasts."""
