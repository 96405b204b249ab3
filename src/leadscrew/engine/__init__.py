"""The loop and what it needs: small, trusted, and blind to which method runs."""
