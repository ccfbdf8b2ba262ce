"""Helpers of the proof: a seeded workload, an independent oracle, a process to kill."""
