"""Environments in processes of their own: what runs on their side of the pipe.

A nursery imports the environment's code once and forks. Each fork is a guard, which starts one environment, watches
all its processes and leaves none. The worker's side is `agentrl.rollout.hosts`.
"""
