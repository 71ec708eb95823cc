"""llama.cpp as contestants of the bench."""
