"""Models of several depths in one."""
