"""Looking inside: traces, pages, profiles, forecasts."""
