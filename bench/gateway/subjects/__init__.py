"""The gateways under test, in the order of the table."""

from __future__ import annotations

from bench.gateway.subjects.agentrl import Agentrl
from bench.gateway.subjects.base import Subject
from bench.gateway.subjects.none import NoGateway
from bench.gateway.subjects.openenv import OpenEnv
from bench.gateway.subjects.rllm import Rllm

COMPARED: tuple[Subject, ...] = (NoGateway(), Agentrl(), Rllm(), OpenEnv())
"""What is measured unless something else is asked for."""
SUBJECTS: dict[str, Subject] = {subject.name: subject for subject in (*COMPARED, Agentrl("agentrl-1", workers=1))}
