"""Questions to a step or a job: changes in the words of users, before and after, sweeps over many settings."""
