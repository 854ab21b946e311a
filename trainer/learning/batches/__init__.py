"""From scored traces to micro-batches: advantages, samples, masks, token weights, packing."""
