"""A run's page: what its directory says, as one HTML file. Reads run directories alone, whoever wrote them and however
far they got; needs no torch, and of what trains, only the place that writes report.html knows it."""
