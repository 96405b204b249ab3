"""The methods: each file is one algorithm from top to bottom."""
