"""HTTP: connections, access, bodies, streams."""
