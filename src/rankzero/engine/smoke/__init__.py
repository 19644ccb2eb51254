"""A short test of the place that a run is about to have: devices, processes, links, clocks, the volume."""
