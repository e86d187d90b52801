"""Networks changed after training: pruned, merged, extracted, made ready to deploy."""
