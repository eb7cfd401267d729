"""The engine of `blockyard-lab simulate --calibrate`."""
