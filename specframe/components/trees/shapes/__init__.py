"""What tree policies are made of: shapes, growth, search, costs."""
