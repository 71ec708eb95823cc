"""DFlash's and DSpark's drafters."""
