"""What drafters without a model remember of a row's text, on the host."""
