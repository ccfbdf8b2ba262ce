"""How fast, against what: ratios measured side by side, rounds interleaved, load printed."""
