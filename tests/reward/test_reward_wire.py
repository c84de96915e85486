"""What goes over the wire to a service: certificates, and the protocols of other frameworks."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from openai.types.responses import Response
from reward_server import answering, serving

from agentrl.errors import ConfigError, RewardError
from agentrl.reward import wire
from agentrl.reward.client import RewardClient
from agentrl.reward.config import ServiceConfig
from agentrl.reward.protocol import Item, nemo_gym_body

TALK = [
    {"role": "system", "content": "Use the tool."},
    {"role": "user", "content": "What is 17*23?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "calc", "arguments": '{"x": "17*23"}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "391"},
    {"role": "assistant", "content": "391"},
]
ITEM = Item(id="s1", task={"id": "t", "options": {"label": "391", "level": 2}}, messages=TALK, text="391")


class Certificate(NamedTuple):
    ca_file: str
    served: ssl.SSLContext


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Self-signed, for 127.0.0.1, good for an hour."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "judge")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    (folder / "ca.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    return Certificate(str(folder / "ca.pem"), context)


def client(url: str, **settings: Any) -> RewardClient:
    return RewardClient(ServiceConfig(name="judge", url=url, batch_wait_s=0.0, **settings))


async def test_a_service_with_a_certificate_of_your_own_is_trusted_by_its_ca_file(certificate: Certificate) -> None:
    async with serving(answering(lambda item: {"reward": 0.5}), certificate.served) as server:
        judge = client(server.url, ca_file=certificate.ca_file)
        await judge.check()
        assert (await judge.score([ITEM]))["s1"].reward == 0.5
        await judge.close()


async def test_a_certificate_that_nobody_vouches_for_is_refused(certificate: Certificate) -> None:
    async with serving(answering(lambda item: {"reward": 0.5}), certificate.served) as server:
        judge = client(server.url, max_attempts=1)
        with pytest.raises(RewardError, match="CERTIFICATE_VERIFY_FAILED"):
            await judge.check()
        score = (await judge.score([ITEM]))["s1"]
        assert score.reward is None
        assert "CERTIFICATE_VERIFY_FAILED" in str(score.error)
        assert server.bodies == []
        await judge.close()


@pytest.mark.parametrize("text", [None, "not a certificate"])
def test_a_ca_file_that_is_none_is_told_before_the_run(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "ca.pem"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=r"the ca_file .*ca.pem of reward service judge is no use"):
        client("https://127.0.0.1:1", ca_file=str(path))


async def test_openrlhf_is_asked_at_the_url_itself_with_texts_prompts_and_labels() -> None:
    async def openrlhf(body: dict[str, Any]) -> web.Response:
        return web.json_response({"rewards": [0.75]})

    async with serving(openrlhf) as server:
        judge = client(server.url, protocol="openrlhf")
        assert (await judge.score([ITEM]))["s1"].reward == 0.75
        prompt = "Use the tool.\nWhat is 17*23?\n\n391"
        assert server.bodies == [{"query": [f"{prompt}\n391"], "prompts": [prompt], "labels": ["391"]}]
        assert server.paths == ["/"]
        await judge.close()


async def test_nemo_gym_is_asked_to_verify_one_at_a_time_an_openai_response_beside_the_tasks_options() -> None:
    async def verify(body: dict[str, Any]) -> web.Response:
        return web.json_response({**body, "reward": 1.0})

    async with serving(verify) as server:
        judge = client(server.url, protocol="nemo_gym", batch_size=8)
        second = Item(id="s2", messages=TALK[:2], text="")
        scores = await judge.score([ITEM, second])
        assert {name: score.reward for name, score in scores.items()} == {"s1": 1.0, "s2": 1.0}
        assert server.paths == ["/verify", "/verify"]
        asked = {body["response"]["id"]: body for body in server.bodies}
        assert (asked["s1"]["label"], asked["s1"]["level"]) == ("391", 2)
        assert asked["s1"]["responses_create_params"] == {
            "input": [{"role": "system", "content": "Use the tool."}, {"role": "user", "content": "What is 17*23?"}]
        }
        said, told, answer = asked["s1"]["response"]["output"]
        assert said == {"type": "function_call", "call_id": "c1", "name": "calc", "arguments": '{"x": "17*23"}'}
        assert (told["type"], told["call_id"], told["output"]) == ("function_call_output", "c1", "391")
        assert (answer["type"], answer["role"], answer["content"][0]["text"]) == ("message", "assistant", "391")
        assert asked["s2"]["response"]["output"] == []
        await judge.close()


def test_what_is_sent_to_nemo_gym_is_a_response_by_openais_own_schema() -> None:
    """NeMo Gym's own model of it takes more: messages of users among the output."""
    read = Response.model_validate(nemo_gym_body(ITEM)["response"], strict=True)
    assert read.output_text == "391"


def test_to_nemo_gym_what_came_before_the_last_message_of_a_user_is_input() -> None:
    """openai's `Response.output_text`, which verifiers read, fails at a user's message among the output."""
    talk = [*TALK, {"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "Yes."}]
    body = nemo_gym_body(Item(id="s1", messages=talk, text="Yes."))
    assert body["responses_create_params"]["input"] == [
        {"role": "system", "content": "Use the tool."},
        {"role": "user", "content": "What is 17*23?"},
        {"type": "function_call", "call_id": "c1", "name": "calc", "arguments": '{"x": "17*23"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "391"},
        {"role": "assistant", "content": "391"},
        {"role": "user", "content": "Sure?"},
    ]
    assert Response.model_validate(body["response"], strict=True).output_text == "Yes."


async def test_a_reward_that_nemo_gym_masks_is_missing_for_its_reason() -> None:
    """Invariant 6: its verifier, not the policy, failed. What it says of a reward's parts is kept."""

    async def verify(body: dict[str, Any]) -> web.Response:
        lost = {"reward": 0.0, "mask_sample": True, "failure_kind": "session_lost", "failure_reason": "no such session"}
        fine = {"reward": 1.0, "mask_sample": False, "failure_kind": None, "reward_components": {"style": 0.5}}
        return web.json_response(lost if body["response"]["id"] == "s1" else fine)

    async with serving(verify) as server:
        judge = client(server.url, protocol="nemo_gym")
        scores = await judge.score([ITEM, Item(id="s2", messages=TALK, text="391")])
        assert scores["s1"].reward is None
        assert "no measurement (session_lost: no such session)" in str(scores["s1"].error)
        assert (scores["s2"].reward, scores["s2"].components) == (1.0, {"style": 0.5})
        await judge.close()


async def test_an_answer_without_end_is_not_read_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_ANSWER", 100_000)

    async def endless(body: dict[str, Any]) -> web.Response:
        return web.Response(body=b" " * 200_000)

    async with serving(endless) as server:
        judge = client(server.url, max_attempts=1)
        score = (await judge.score([ITEM]))["s1"]
        assert score.error == "reward service judge sent more than 100000 bytes; send scores only"
        await judge.close()


@pytest.mark.parametrize("answer", [{"reward": None}, {"reward": "1"}, {}, []])
async def test_a_verification_without_a_number_leaves_the_reward_missing(answer: Any) -> None:
    async def verify(body: dict[str, Any]) -> web.Response:
        return web.json_response(answer)

    async with serving(verify) as server:
        judge = client(server.url, protocol="nemo_gym", max_attempts=1)
        score = (await judge.score([ITEM]))["s1"]
        assert score.reward is None
        assert "reward service judge broke its contract" in str(score.error)
        await judge.close()


@pytest.mark.parametrize("protocol", ["openrlhf", "nemo_gym"])
async def test_a_service_of_another_protocol_has_no_health_check_to_fail(protocol: str) -> None:
    judge = client("http://127.0.0.1:1", protocol=protocol)
    await judge.check()
    await judge.close()
