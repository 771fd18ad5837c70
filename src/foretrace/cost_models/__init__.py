"""What ops and collectives cost on a platform, in microseconds."""
