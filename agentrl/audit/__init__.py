"""Re-checks a run's stored trajectories against the invariants of the design: `agentrl audit RUN`."""
