"""Models: the gateway that every call goes through, the dialects it speaks, and what answers behind it."""
