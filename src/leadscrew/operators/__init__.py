"""Ways to make a proposal: each module is one proposer, or a part that several share."""
