"""What each kind of component must do, checked."""
