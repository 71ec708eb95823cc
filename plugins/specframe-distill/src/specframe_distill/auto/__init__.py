"""`specframe train --auto`: trains a drafter for a model within minutes."""
