"""Images of classes: readers and loading."""
