"""One module per engine that `benchmarks/peers.py` can time; `base.Engine` is what each one fills in."""
