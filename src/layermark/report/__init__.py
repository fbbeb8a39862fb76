"""Results as people read them: terminal tables."""
