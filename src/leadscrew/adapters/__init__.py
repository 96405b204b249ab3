"""The world: sandboxes, stores, executors, models and agents behind the ports. Nothing is imported eagerly."""
