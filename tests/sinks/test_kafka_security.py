"""The Kafka sink on a broker that speaks TLS only, asks for a certificate and for a login."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from pgstream_dagster.config.kafka import KafkaConfig
from pgstream_dagster.embedded.kafka import Kafka
from pgstream_dagster.errors import SinkRefused, SinkUnreachable
from pgstream_dagster.readers.change import ChangeBatch
from pgstream_dagster.sinks.base import Refused
from pgstream_dagster.sinks.kafka.sink import KafkaSink
from tests.support.changes import change
from tests.support.events import event, event_id
from tests.support.plugins.kafka import read, started

MODULE = "org.apache.kafka.common.security"
ROW = {"id": "1", "amount": "1.10", "note": "a"}


class Secured(NamedTuple):
    broker: Kafka
    files: Path

    def tls(self, **keys: Any) -> dict[str, Any]:
        files = {"ca": "ca.pem", "certificate": "client.pem", "key": "client-key.pem"}
        return {name: str(self.files / file) for name, file in files.items()} | keys


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    files = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(files / "ca.pem")
    server, client = authority.issue_cert("localhost"), authority.issue_cert("client")
    key = load_pem_private_key(server.private_key_pem.bytes(), None)
    pkcs8 = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = b"".join(blob.bytes() for blob in server.cert_chain_pems)
    (files / "server.pem").write_bytes(pkcs8 + chain)
    client.private_key_pem.write_to_path(files / "client-key.pem")
    client.cert_chain_pems[0].write_to_path(files / "client.pem")
    broker = started(_settings(files), secure="SASL_SSL")
    try:
        admin = AdminClient({"bootstrap.servers": broker.servers})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        upsert = UserScramCredentialUpsertion("me", info, b"secret")
        for answer in admin.alter_user_scram_credentials([upsert]).values():
            answer.result()
        yield Secured(broker, files)
    finally:
        broker.close()


def _settings(files: Path) -> dict[str, str]:
    listener = "listener.name.secure"
    login = f'{MODULE}.plain.PlainLoginModule required user_me="secret";'
    bearer = f"{MODULE}.oauthbearer.OAuthBearerLoginModule required"
    return {
        f"{listener}.ssl.keystore.type": "PEM",
        f"{listener}.ssl.keystore.location": str(files / "server.pem"),
        f"{listener}.ssl.truststore.type": "PEM",
        f"{listener}.ssl.truststore.location": str(files / "ca.pem"),
        f"{listener}.ssl.client.auth": "required",
        f"{listener}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
        f"{listener}.plain.sasl.jaas.config": login,
        f"{listener}.scram-sha-512.sasl.jaas.config": f"{MODULE}.scram.ScramLoginModule required;",
        f"{listener}.oauthbearer.sasl.jaas.config": f'{bearer} unsecuredLoginStringClaim_sub="b";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
    }


def sink_of(
    secured: Secured,
    sasl: dict[str, Any],
    tls: dict[str, Any] | None = None,
    *,
    is_outbox: bool = False,
    **variables: str,
) -> KafkaSink:
    settings = {
        "bootstrap_servers": secured.broker.secure_servers,
        "topic": f"{'outbox' if is_outbox else 'secure'}.{sasl['mechanism']}",
        "create": {},
        "tls": secured.tls() if tls is None else tls,
        "sasl": {"username": "me", "password": "PASSWORD", **sasl},
    }
    config = KafkaConfig.model_validate(settings)
    return KafkaSink(
        config, pipeline="shop", sink="events", environment=variables, is_outbox=is_outbox
    )


def delivers(sink: KafkaSink) -> None:
    sink.open()
    assert sink.deliver(ChangeBatch([change(after=ROW)])) == {}
    sink.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_login_over_mutual_tls_delivers(secured: Secured, mechanism: str) -> None:
    delivers(sink_of(secured, {"mechanism": mechanism}, PASSWORD="secret"))
    assert len(read(secured.broker.servers, f"secure.{mechanism}")) == 1


def test_a_token_over_mutual_tls_delivers(secured: Secured, token_url: str) -> None:
    sasl = {"mechanism": "OAUTHBEARER", "token_url": token_url}
    delivers(sink_of(secured, sasl, PASSWORD="secret"))
    assert len(read(secured.broker.servers, "secure.OAUTHBEARER")) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "mechanism", ["PLAIN", pytest.param("SCRAM-SHA-512", marks=pytest.mark.long)]
)
def test_a_wrong_password_is_refused_and_not_shown(secured: Secured, mechanism: str) -> None:
    sink = sink_of(secured, {"mechanism": mechanism}, PASSWORD="not-the-secret")
    with pytest.raises(SinkRefused, match="check 'sasl'") as raised:
        sink.open()
    assert "not-the-secret" not in str(raised.value)


@pytest.mark.long
def test_a_broker_of_another_authority_is_refused(secured: Secured, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    tls = secured.tls(ca=str(tmp_path / "other.pem"))
    with pytest.raises(SinkRefused, match="check 'tls'"):
        sink_of(secured, {"mechanism": "PLAIN"}, tls, PASSWORD="secret").open()


@pytest.mark.long
def test_a_client_without_a_certificate_gets_an_error_that_names_it(secured: Secured) -> None:
    tls = {"ca": str(secured.files / "ca.pem")}
    with pytest.raises(SinkUnreachable, match="certificate"):
        sink_of(secured, {"mechanism": "PLAIN"}, tls, PASSWORD="secret").open()


@pytest.mark.parametrize(
    "operations", [["READ", "DESCRIBE"], ["ALL"]], ids=["of the user", "of another"]
)
def test_topic_of_an_event_that_may_not_be_written_is_that_event_s_matter(
    secured: Secured, operations: list[str]
) -> None:
    topic = f"denied.{len(operations)}"
    admin = AdminClient({"bootstrap.servers": secured.broker.servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    user = "User:me" if len(operations) > 1 else "User:other"
    rights = [
        AclBinding(
            *(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, user, "*"),
            *(AclOperation[operation], AclPermissionType.ALLOW),
        )
        for operation in operations
    ]
    for answer in admin.create_acls(rights).values():
        answer.result()
    sink = sink_of(secured, {"mechanism": "PLAIN"}, is_outbox=True, PASSWORD="secret")
    sink.open()
    verdicts = sink.deliver(ChangeBatch([event(1, topic=topic), event(2, topic="allowed")]))
    assert sink.deliver(ChangeBatch([event(3)])) == {}
    sink.close()
    assert sorted(verdicts) == [0]
    assert isinstance(verdicts[0], Refused)
    assert "kafka-acls.sh" in verdicts[0].reason
    assert event_id(2) in {r.key.decode() for r in read(secured.broker.servers, "allowed")}


@pytest.fixture
def token_url() -> Iterator[str]:
    """An issuer of unsigned tokens, which the broker takes."""

    def part(claims: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")

    class Issuer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            now = int(time.time())
            claims = {"sub": "me", "iat": now, "exp": now + 600}
            token = f"{part({'alg': 'none'})}.{part(claims)}."
            body = json.dumps({"access_token": token, "expires_in": 600}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Issuer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/token"
        finally:
            server.shutdown()
            thread.join()
