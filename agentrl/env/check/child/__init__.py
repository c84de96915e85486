"""What runs in the environment's own process: it plays, measures and writes down; it judges nothing."""
