"""`specframe train --auto`: a drafter for a model within some minutes."""
