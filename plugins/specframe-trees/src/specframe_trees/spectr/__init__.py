"""Verifiers that judge several siblings together."""
