"""What the core is handed instead of the world: disk, store, entropy; and the effects it asks for."""
