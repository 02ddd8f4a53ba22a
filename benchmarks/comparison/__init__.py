"""The parts of `benchmarks/peers.py`: environments, models, workers, measurement, goals, output."""
