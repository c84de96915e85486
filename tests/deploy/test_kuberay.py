"""The manifests for KubeRay: what is in them fits together, and the run in them is one. No Kubernetes is here."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl.cluster.placement import Node, plan, shortage
from agentrl.config import RunConfig
from agentrl.engine.parallel import workers_of_engine

DEPLOY = Path(__file__).parents[2] / "deploy"
DOCUMENTS = list(yaml.safe_load_all((DEPLOY / "kuberay" / "rayjob.yaml").read_text()))


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = [document for document in DOCUMENTS if document["kind"] == kind]
    return dict(found)


JOB = of_kind("RayJob")["spec"]
CLUSTER = JOB["rayClusterSpec"]
GROUPS = [CLUSTER["headGroupSpec"], *CLUSTER["workerGroupSpecs"]]
PODS = [group["template"]["spec"] for group in GROUPS]
RUN = RunConfig.model_validate(tomllib.loads(of_kind("ConfigMap")["data"]["run.toml"]))

# Of KubeRay's CRDs (v1), those fields that are used here; the whole file passed the CRD's schema when it was written.
JOB_FIELDS = {"entrypoint", "backoffLimit", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "rayClusterSpec"}
CLUSTER_FIELDS = {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
GROUP_FIELDS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}


def free(group: dict[str, Any]) -> dict[str, float]:
    """What Ray has on a pod of the group: of its limits, and of its start parameters."""
    (container,) = group["template"]["spec"]["containers"]
    limits, started = container["resources"]["limits"], group["rayStartParams"]
    custom = json.loads(json.loads(started["resources"])) if "resources" in started else {}
    return {"CPU": float(limits["cpu"]), "GPU": float(limits.get("nvidia.com/gpu", 0)), **custom}


def test_only_fields_of_the_custom_resource_are_used():
    assert set(JOB) <= JOB_FIELDS
    assert set(CLUSTER) <= CLUSTER_FIELDS
    assert all(set(group) <= GROUP_FIELDS for group in GROUPS)
    assert all(isinstance(value, str) for group in GROUPS for value in group["rayStartParams"].values())


def test_the_run_in_the_manifest_finds_room_in_the_cluster_of_the_manifest():
    pods = [free(group) for group in GROUPS for _ in range(group.get("replicas", 1))]
    gpus_each = workers_of_engine(RUN.engine.extra_args)
    ranks = RUN.trainer.ranks  # type: ignore[attr-defined]
    made = plan(RUN.cluster, engines=RUN.engine.replicas, gpus_each=gpus_each, ranks=ranks, gpus=True)
    assert shortage(made, [Node(str(index), pod) for index, pod in enumerate(pods)]) is None
    assert shortage(made, [Node(str(index), pod) for index, pod in enumerate(pods[:-1])]) is not None


def test_a_run_goes_on_from_the_volume_after_its_cluster_failed():
    script, run, file = JOB["entrypoint"].split()
    assert script == "/opt/agentrl/deploy/run-or-resume.sh"
    assert os.access(DEPLOY / "run-or-resume.sh", os.X_OK)
    assert Path(run) == RUN.directory
    assert JOB["backoffLimit"] > 0
    mounts = [mount for pod in PODS for container in pod["containers"] for mount in container["volumeMounts"]]
    assert [mount["mountPath"] for mount in mounts if mount["name"] == "runs"] == [str(RUN.runs_dir)] * len(PODS)
    assert {"name": "run", "mountPath": str(Path(file).parent)} in mounts
    assert of_kind("PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteMany"]


@pytest.mark.parametrize("pod", PODS)
def test_every_volume_that_a_pod_mounts_is_there(pod: dict[str, Any]):
    (container,) = pod["containers"]
    assert [mount["name"] for mount in container["volumeMounts"]] == [volume["name"] for volume in pod["volumes"]]
    names = {document["metadata"]["name"] for document in DOCUMENTS}
    for volume in pod["volumes"]:
        claimed = volume.get("persistentVolumeClaim", {}).get("claimName") or volume.get("configMap", {}).get("name")
        assert claimed is None or claimed in names
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]


def test_nobody_joins_without_a_token_and_the_database_password_is_a_secret():
    assert CLUSTER["authOptions"] == {"mode": "token"}
    environment = PODS[0]["containers"][0]["env"]
    assert [(entry["name"], set(entry)) for entry in environment] == [("PGPASSWORD", {"name", "valueFrom"})]
    assert RUN.store_url == "postgresql://agentrl@postgres:5432/agentrl"


def test_only_pods_of_the_run_reach_its_pods_but_for_the_port_that_jobs_come_by():
    policy = of_kind("NetworkPolicy")["spec"]
    label = {"matchLabels": {"app.kubernetes.io/name": "agentrl"}}
    assert policy["podSelector"] == label
    assert policy["ingress"] == [{"from": [{"podSelector": label}]}, {"ports": [{"port": 8265}]}]
    assert all(group["template"]["metadata"]["labels"] == label["matchLabels"] for group in GROUPS)


def test_ray_in_the_manifest_is_the_ray_of_the_lock():
    lock = (DEPLOY.parent / "requirements" / "cpu.lock").read_text()
    assert f"ray=={CLUSTER['rayVersion']}" in lock
