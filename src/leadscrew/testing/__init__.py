"""For plug-in authors: conformance suites for the ports, scripted parts, and the hostile programs of the red team."""
