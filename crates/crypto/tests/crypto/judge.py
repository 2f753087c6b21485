"""The published client of the mesh, unmodified, as the judge of what we seal, sign and certify.

Reads one JSON object from standard input (who is who, what we made, where our PKI is served) and writes one to
standard output: what the client made of it, and what it made for us.
"""

import asyncio
import json
import logging
import sys
import tempfile
from pathlib import Path

from aun_core.auth import AuthFlow
from aun_core.crypto import CryptoProvider
from aun_core.e2ee import E2EEManager
from aun_core.keystore.file import FileKeyStore
from aun_core.namespaces.meta_namespace import MetaNamespace
from cryptography import x509


class Warnings(logging.Handler):
    """The client only warns where it ought to refuse: what it warns of counts as refused."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.said = []

    def emit(self, record):
        self.said.append(record.getMessage())


def manager(person, people, directory):
    keystore = FileKeyStore(directory, encryption_seed="judge")
    keystore.save_key_pair(person["aid"], {"private_key_pem": person["private_key_pem"]})
    for other in people:
        keystore.save_cert(other["aid"], other["cert"])
    if "prekey" in person:
        saved = {"private_key_pem": person["prekey"]["private_key_pem"], "created_at": person["prekey"]["created_at"]}
        keystore.save_e2ee_prekey(person["aid"], person["prekey"]["prekey_id"], saved, "")
    return E2EEManager(identity_fn=lambda: person, keystore=keystore)


async def believes(asked, certificate, root, directory):
    """Whether the client believes a certificate after asking for chain, revocation list and OCSP; and its warnings."""
    Path(directory).mkdir()
    root_file = Path(directory) / "root.pem"
    root_file.write_text(root)
    flow = AuthFlow(keystore=FileKeyStore(directory), crypto=CryptoProvider(), root_ca_path=str(root_file))
    heard = Warnings()
    logging.getLogger("aun_core.auth").addHandler(heard)
    try:
        await flow.verify_peer_certificate(asked["gateway"], x509.load_pem_x509_certificate(certificate["cert"].encode()), certificate["aid"])
        refused = None
    except Exception as error:
        refused = str(error)
    logging.getLogger("aun_core.auth").removeHandler(heard)
    return {"refused": refused, "warnings": heard.said}


def main():
    asked = json.load(sys.stdin)
    alice, bobby, people = asked["alice"], asked["bobby"], [asked["alice"], asked["bobby"]]
    answer = {}
    with tempfile.TemporaryDirectory() as home:
        ours, theirs = manager(bobby, people, home + "/bobby"), manager(alice, people, home + "/alice")
        opened = [ours.decrypt_message(message) for message in asked["sealed"]]
        answer["opened"] = [message and message["payload"] for message in opened]
        answer["again"] = [ours.decrypt_message(message) for message in asked["sealed"]]
        answer["sealed"] = []
        for number, prekey in enumerate([asked["prekey"], None]):
            theirs.invalidate_prekey_cache(bobby["aid"])
            envelope, about = theirs.encrypt_outbound(
                bobby["aid"], asked["text"], peer_cert_pem=bobby["cert"].encode(), prekey=prekey,
                message_id=f"theirs-{number}", timestamp=asked["now_ms"],
            )
            answer["sealed"].append({"envelope": envelope, "mode": about["mode"]})
        answer["prekey"] = theirs.generate_prekey()
        judged = {}
        for name, root in [("alice", "root"), ("carol", "root"), ("auth", "root"), ("alice", "other_root")]:
            verdict = asyncio.run(believes(asked, asked[name], asked[root], f"{home}/{name}-{root}"))
            judged[f"{name} under {root}"] = verdict
        answer["judged"] = judged
        trusted = MetaNamespace(None).verify_trust_roots(asked["trust_list"], authority_public_key_pem=asked["authority"])
        answer["trusted"] = trusted["count"]
    json.dump(answer, sys.stdout)


main()
