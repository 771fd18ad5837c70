"""What machines are, and how they are measured: descriptions as files, cases to time, and what was timed."""
