"""Before it is open, and where nothing is reserved, a site is this machine, which everybody shares."""

from __future__ import annotations

from agentrl.cluster.placement import plan
from agentrl.cluster.reservation import reserve
from agentrl.cluster.site import Site
from agentrl.train.cluster_config import ClusterConfig


def test_on_one_machine_everybody_is_on_loopback_and_without_a_place():
    site = Site()
    assert (site.several, site.host, site.first_rank(), site.engine_key) == (False, "127.0.0.1", "127.0.0.1", None)
    assert [site.engine(3), site.rank(0), site.worker(), site.beside_the_driver()] == [{}, {}, {}, {}]
    assert site.device(0) is None


async def test_where_nothing_is_to_be_reserved_ray_is_not_asked():
    planned = plan(ClusterConfig(), engines=2, gpus_each=1, ranks=1, gpus=False)
    reservation = await reserve(planned, {}, timeout_s=1.0)
    assert (reservation.options(planned.engines[1]), reservation.nodes()) == ({}, set())
    assert await reservation.lent_devices() == {}
