"""Objects: pictures with boxes and masks."""
